"""Baseline `selective[:MODULES]`: only some modules run again, on demand (Megatron-LM's selective recomputation).

Without a setting the attention core; else a list as in Megatron-LM's modules to recompute (`modules.py`).

The core is the attention op with what lies between it and the matmul that made its operands; where attention is
not one op, the batched matmul that makes the scores, the softmax, and what follows up to the batched matmul over the
values. That one's result is what the projection reads: it is kept, as Megatron-LM keeps the core's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import Op, Phase, Role
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.full import repeated_layers
from lynx_plan.solve.modules import MODULES
from lynx_plan.solve.order import Placement
from lynx_plan.solve.settings import scored_of

BATCHED = frozenset(("bmm", "baddbmm"))
MATMULS = frozenset(("mm", "addmm", "linear", "convolution", "_scaled_mm", "_grouped_mm"))
CORE = "core_attn"
NAMES = {CORE: "attention", "layernorm": "norms", "mlp": "MLP", "moe": "experts", "moe_act": "experts"}
NOTHING = "the model has no {}, so selective recomputation has nothing to recompute"


def solve(problem: Problem) -> Solution:
    """Recompute the named modules of every layer directly before their backward; without a setting, attention cores."""
    facts = analysis_of(problem.index).whole
    names = problem.setting.split(",") if problem.setting else [CORE]
    parts = {name: _module(facts, name.strip()) for name in names}
    drop = sorted({op for ops in parts.values() for op in ops})
    placements = [Placement(op=op) for op in facts.closure(drop)]
    scored = scored_of(problem, placements)
    missing = tuple(NOTHING.format(NAMES.get(name, name)) for name, ops in parts.items() if not ops)
    return Solution(items=scored.items, status=FEASIBLE if placements else NOT_NEEDED, notes=missing)


def _module(facts: Candidates, name: str) -> list[int]:
    """The droppable ops of a module in every layer."""
    if name == CORE:
        return [op for op in attention_core(facts) if facts.droppable(op)]
    if name not in MODULES:
        hint = f"known: {', '.join((CORE, *MODULES))}, several with commas"
        raise LynxError(f"'{name}' is no module to recompute", where="--algo", hint=hint)
    layers = repeated_layers(facts.index)
    return [op for layer in layers for op in MODULES[name](facts, layer) if facts.droppable(op)]


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
