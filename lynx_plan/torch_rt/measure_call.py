"""An op call as JSON data: made from an fx node where the graph is, re-created where it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lynx_plan.errors import LynxError

# constants of torch that ATen calls take, by the prefix of their text
_NAMED = (torch.dtype, torch.layout, torch.memory_format)


def tensor_data(shape: Sequence[int], stride: Sequence[int], dtype: str) -> dict[str, Any]:
    """A tensor operand: shape and stride in elements, dtype such as `float32`."""
    return {
        "shape": [int(size) for size in shape],
        "stride": [int(step) for step in stride],
        "dtype": dtype.removeprefix("torch."),
    }


def node_call(node: fx.Node, reuse: Callable[[fx.Node], int], group_size: int = 0) -> dict[str, Any]:
    """The call of a node: target, args, kwargs; a collective's group becomes its size.

    `reuse` gives an operand's reuse distance in bytes (`measure_reuse`). Raises LynxError for a target
    that is no ATen-style op, or an argument that is no constant.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise LynxError(
            f"op '{node.name}' ({target}) cannot be measured by itself",
            hint="price by a machine file instead: lynx profile --machine NAME",
        )
    names = [argument.name for argument in target._schema.arguments]
    args = [
        {"group": group_size} if name == "group_name" else _encode(value, node, reuse)
        for name, value in zip(names, node.args, strict=False)
    ]
    kwargs = {
        name: {"group": group_size} if name == "group_name" else _encode(value, node, reuse)
        for name, value in sorted(node.kwargs.items())
    }
    return {"target": str(target), "args": args, "kwargs": kwargs}


def _encode(value: Any, node: fx.Node, reuse: Callable[[fx.Node], int]) -> Any:
    if isinstance(value, fx.Node):
        held = value.meta["val"]
        if not isinstance(held, torch.Tensor):
            return _encode(held, node, reuse)
        return {"tensor": {**tensor_data(held.shape, held.stride(), str(held.dtype)), "reuse": reuse(value)}}
    if isinstance(value, (list, tuple)):
        return [_encode(item, node, reuse) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _NAMED):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": "cpu"}
    if isinstance(value, torch.SymInt):
        return int(value)
    raise LynxError(f"op '{node.name}' ({node.target}) takes a {type(value).__name__}, which cannot be measured")


def resolve(target: str) -> Callable[..., Any]:
    """The op of a text such as `aten.mm.default`."""
    namespace, name, overload = target.rsplit(".", 2)
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def tensors_in(data: Any) -> list[dict[str, Any]]:
    """All tensor operands in encoded arguments, in order."""
    if isinstance(data, dict):
        return [data["tensor"]] if "tensor" in data else []
    if isinstance(data, list):
        return [tensor for item in data for tensor in tensors_in(item)]
    return []


def decode(data: Any, make: Callable[[dict[str, Any]], torch.Tensor], groups: dict[int, str]) -> Any:
    """Encoded arguments with real tensors (from `make`) and group names in place."""
    if isinstance(data, list):
        return [decode(item, make, groups) for item in data]
    if not isinstance(data, dict):
        return data
    (kind, value), *_ = data.items()
    match kind:
        case "tensor":
            return make(value)
        case "group":
            return groups[value]
        case "torch":
            return getattr(torch, value)
        case _:
            return torch.device(value)
