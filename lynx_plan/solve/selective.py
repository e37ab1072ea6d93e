"""Baseline `selective`: only the attention core runs again, on demand (Megatron-LM's selective recomputation).

The core is the attention op with what lies between it and the matmul that made its operands; where attention is
not one op, the batched matmul that makes the scores, the softmax, and what follows up to the batched matmul over the
values. That one's result is what the projection reads: it is kept, as Megatron-LM keeps the core's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import Op, Phase, Role
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.order import Decisions, Placement, build_order

BATCHED = frozenset(("bmm", "baddbmm"))
MATMULS = frozenset(("mm", "addmm", "linear", "convolution", "_scaled_mm", "_grouped_mm"))
NO_ATTENTION = "the model has no attention, so selective recomputation has nothing to recompute"


def solve(problem: Problem) -> Solution:
    """Recompute the attention core of every layer directly before its backward."""
    facts = Candidates(problem.index)
    core = [op for op in attention_core(facts) if facts.droppable(op)]
    placements = tuple(Placement(op=op) for op in facts.closure(core))
    items = build_order(problem.index, Decisions(placements=placements))
    if not placements:
        return Solution(items=items, status=NOT_NEEDED, notes=(NO_ATTENTION,))
    return Solution(items=items, status=FEASIBLE)


def attention_core(facts: Candidates) -> tuple[int, ...]:
    """Forward ops of the attention cores, ascending."""
    index = facts.index
    forward = [op for op in index.graph.ops if op.phase is Phase.FORWARD and op.role is Role.COMPUTE]
    fused = [op.id for op in forward if "attention" in op.kind]
    softmax = [op.id for op in forward if op.kind.split(".")[-1] in ("softmax", "_softmax")]
    after = _walk(softmax, lambda op: _forward_readers(index, op), index, stop_at=BATCHED)
    start = fused or sorted(op for op in after if not _is(index.graph.ops[op], BATCHED))
    core = _walk(start, lambda op: facts.sources[op], index, stop_at=frozenset())
    return tuple(sorted(core))


def _walk(
    start: list[int], neighbours: Callable[[int], tuple[int, ...]], index: GraphIndex, *, stop_at: frozenset[str]
) -> set[int]:
    """Ops reached from `start` in the same layer: not into matmuls and collectives, not past `stop_at`."""
    found = set(start)
    stack = list(start)
    while stack:
        op = stack.pop()
        for other in neighbours(op):
            record = index.graph.ops[other]
            if other in found or index.op_layer[other] != index.op_layer[op]:
                continue
            if record.role is not Role.COMPUTE or _is(record, MATMULS):
                continue
            found.add(other)
            if not _is(record, stop_at):
                stack.append(other)
    return found


def _is(op: Op, kinds: Iterable[str]) -> bool:
    return not frozenset(kinds).isdisjoint(op.kind.split("."))


def _forward_readers(index: GraphIndex, op: int) -> tuple[int, ...]:
    """Forward ops that read what `op` makes, through views."""
    graph = index.graph
    storages = dict.fromkeys(graph.tensors[t].storage for t in graph.ops[op].outputs)
    readers = (r for s in storages for t in index.storage_tensors[s] for r in index.consumers[t])
    return tuple(r for r in dict.fromkeys(readers) if graph.ops[r].phase is Phase.FORWARD)
