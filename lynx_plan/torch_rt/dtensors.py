"""Parameters that are DTensors (`parallelize_module`): the step works on this rank's local tensor of each.

Tracing takes a DTensor apart into its local tensor and its mesh; `unwrap` makes the local tensor the parameter itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from lynx_plan.torch_rt import compat

_LOCAL = "_local_tensor"


def unwrap(graph: fx.Graph) -> None:
    """Inputs and outputs that stand for a DTensor's local tensor stand for the parameter; its mesh is left out."""
    end = next(iter(reversed(graph.nodes)))
    made = compat.subclass_output()
    kept = [
        (value, descriptor.base if isinstance(descriptor, made) else descriptor)
        for value, descriptor in zip(end.args[0], end.meta["desc"], strict=True)
        if not isinstance(descriptor, made) or descriptor.attr == _LOCAL
    ]
    end.args = (tuple(value for value, _ in kept),)
    end.meta["desc"] = [descriptor for _, descriptor in kept]
    for node in list(graph.nodes):
        if node.op == "placeholder" and isinstance(node.meta.get("desc"), compat.subclass_input()):
            if node.meta["desc"].attr == _LOCAL:
                node.meta["desc"] = node.meta["desc"].base
            else:
                graph.erase_node(node)


def local(tensor: Any) -> Any:
    """This rank's part of a DTensor; anything else as it is."""
    if not is_dtensor(tensor):
        return tensor
    part = tensor.detach().to_local()
    return part.wait() if hasattr(part, "wait") else part


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is distributed; its type is not imported for that."""
    return hasattr(tensor, _LOCAL)


def distributed_like(parameter: Tensor, part: Tensor) -> Tensor:
    """A gradient's local part as the parameter's `.grad`: a DTensor where the parameter is one."""
    if not is_dtensor(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip


def local_parameter(parameter: Tensor) -> torch.nn.Parameter:
    """The local part as a parameter of its own, for what only counts bytes."""
    return torch.nn.Parameter(local(parameter), requires_grad=parameter.requires_grad)
