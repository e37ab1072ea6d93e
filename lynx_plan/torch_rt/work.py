"""How much an op does: floating-point operations and bytes moved, from its fake values."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor, fx
from torch.utils import flop_counter

from lynx_plan.torch_rt.arguments import tensor_arguments, values
from lynx_plan.torch_rt.kept_block import FORWARD, facts_of, is_kept
from lynx_plan.torch_rt.kinds import base_name, kind_of

# They read as many elements of their first tensor as they write.
_GATHERS = ("embedding", "index_select", "gather", "index")


def flops(node: fx.Node) -> int:
    """Matmuls, convolutions and attention by torch's own formulas; any other op: its output elements."""
    if is_kept(node):
        facts = facts_of(node)
        return facts.forward_flops if node.target is FORWARD else facts.backward_flops
    kind = kind_of(node)
    inputs = [leaf.meta["val"].shape for leaf in tensor_arguments(node)]
    if kind == "attention":
        return int(flop_counter.sdpa_flop_count(*inputs[:3]))
    if kind == "attention_backward":
        return int(flop_counter.sdpa_backward_flop_count(*inputs[:4]))
    formula = flop_counter.flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return sum(value.numel() for value in outputs(node) if value is not None)
    args, kwargs = values(node)
    return int(formula(*args, **kwargs, out_val=node.meta["val"]))


def moved_bytes(node: fx.Node) -> int:
    """Bytes read and written: each distinct input once, and the outputs."""
    written = sum(extent_bytes(value) for value in outputs(node) if value is not None)
    inputs = [leaf.meta["val"] for leaf in dict.fromkeys(tensor_arguments(node))]
    read = sum(extent_bytes(value) for value in inputs)
    if base_name(node) in _GATHERS and inputs:
        read += min(0, written - extent_bytes(inputs[0]))
    return written + read


def extent_bytes(value: Tensor) -> int:
    """Bytes of the distinct elements of a tensor: an expanded dimension counts once."""
    sizes = (size for size, stride in zip(value.shape, value.stride(), strict=True) if stride or not size)
    return prod(sizes) * value.element_size()


def outputs(node: fx.Node) -> tuple[Tensor | None, ...]:
    """An op's outputs by port; None where a port holds no tensor."""
    value: Any = node.meta.get("val")  # what only checks something has none
    ports = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(port if isinstance(port, Tensor) else None for port in ports)
