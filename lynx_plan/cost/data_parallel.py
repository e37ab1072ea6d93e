"""Which gradients the model itself reduces over the data-parallel ranks, and which are left to the end of the step."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lynx_plan.model.graph import CostGraph, Op, Role
from lynx_plan.units import format_bytes

DIMENSION = "dp"
REDUCTIONS = frozenset(["all_reduce", "reduce_scatter"])
# One operand in, the same gradient out, in another size or type.
_SCALINGS = frozenset(["aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar", "aten._to_copy"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """The gradients that are averaged over the data-parallel ranks when a step's microbatches are done."""

    parameters: tuple[str, ...]
    bytes: tuple[tuple[str, int], ...]  # (dtype, bytes): each dtype's are one all-reduce
    ranks: int
    stride: int  # ranks from one member of the group to the next


def final_average(graph: CostGraph) -> Average:
    """What is left to average: gradients that are no result of a reduction over `dp` in the graph."""
    ranks = dict(graph.mesh).get(DIMENSION, 1)
    names = [name for name, _ in graph.mesh]
    inner = graph.mesh[names.index(DIMENSION) + 1 :] if DIMENSION in names else ()
    left = [op for op in graph.ops if op.role is Role.ACCUMULATE and ranks > 1 and not _reduced(graph, op)]
    sizes: dict[str, int] = {}
    for op in left:
        tensor = graph.tensors[op.inputs[0]]
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + op.bytes // 3  # read twice, written once
    return Average(
        parameters=tuple(dict.fromkeys(op.parameter for op in left)),
        bytes=tuple(sizes.items()),
        ranks=ranks,
        stride=prod(size for _, size in inner),
    )


def average_note(graph: CostGraph) -> tuple[str, ...]:
    """What the user should know of it; empty if nothing is left to average."""
    average = final_average(graph)
    size = format_bytes(sum(count for _, count in average.bytes))
    text = (
        f"gradients of {len(average.parameters)} parameters ({size}) are averaged over {DIMENSION} at the end of a "
        "step, since the model does not do it; the step's time counts it with the optimizer"
    )
    return (text,) if average.parameters else ()


def _reduced(graph: CostGraph, accumulate: Op) -> bool:
    """Whether the gradient comes out of a reduction over `dp`, through nothing but views, waits and scalings."""
    tensor = accumulate.inputs[0]
    while (producer := graph.tensors[tensor].producer) >= 0:
        op = graph.ops[producer]
        if op.role is Role.COLLECTIVE and op.kind in REDUCTIONS:
            if DIMENSION in op.group.split("+"):
                return True
            tensor = op.inputs[op.outputs.index(tensor)]
        elif op.role in (Role.VIEW, Role.WAIT) or (op.kind in _SCALINGS and len(op.inputs) == 1):
            tensor = op.inputs[0]
        else:
            return False
    return False
