"""What no plan can run, refused by its name as soon as it is traced."""

from __future__ import annotations

import torch
from torch import fx

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt import compat

_PREFIX = "model."  # of parameter names in the traced wrapper


def refuse_unsupported(joint: fx.GraphModule, path: str) -> None:
    """Raises LynxError for objects that are no tensors, sparse tensors, and changed parameters or inputs."""
    for node in joint.graph.nodes:
        if node.op == "get_attr" and not isinstance(node.meta.get("val"), torch.Tensor):
            _refuse_object(getattr(joint, str(node.target), None), path)
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                text = f"'{node.name}' makes a sparse tensor"
                raise LynxError(text, where=path, hint="use dense gradients: nn.Embedding(..., sparse=False)")
    end = next(iter(reversed(joint.graph.nodes)))
    for descriptor in end.meta["desc"]:
        if isinstance(descriptor, compat.InputMutationAOTOutput):
            _refuse_mutation(descriptor.mutated_input, path)


def _refuse_object(found: object, path: str) -> None:
    if isinstance(found, torch.Generator):
        text, hint = "the model draws from a torch.Generator of its own", "draw from the default generator"
        raise LynxError(text, where=path, hint=f"{hint}: torch.manual_seed makes it repeatable")
    if found is not None and not isinstance(found, (torch.Tensor, fx.GraphModule)):
        what = type(found).__name__
        raise LynxError(f"the model's graph holds a {what}", where=path, hint="let it compute with tensors only")


def _refuse_mutation(changed: object, path: str) -> None:
    if isinstance(changed, compat.ParamAOTInput):
        text = f"forward changes the parameter '{changed.target.removeprefix(_PREFIX)}' in place"
        raise LynxError(text, where=path, hint="change parameters outside of forward; only buffers may change in it")
    if isinstance(changed, compat.PlainAOTInput):
        text = f"forward changes its input {changed.idx} in place"
        raise LynxError(text, where=path, hint="write x = x + 1 for x += 1, or clone the input first")
