"""Baseline `rotor`: the optimal checkpointing of a chain of layers, each recomputed as often as pays (Rotor).

Beaumont et al., "Optimal checkpointing for heterogeneous chains" (2019): with memory m, layers i..j and the input of i
at hand, either keep all of layer i and go on with i+1..j, or run i..k-1 forward keeping only the input of k, do k..j,
and come back to i..k-1. Memory is in `SLOTS` parts of the budget; the layers of a graph are taken as the chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lynx_plan.model.graph import Phase
from lynx_plan.model.program import Item
from lynx_plan.solve.analysis import Analysis, analysis_of
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, Problem, Solution
from lynx_plan.solve.remat_order import with_copies
from lynx_plan.solve.score import score
from lynx_plan.solve.uniform import droppable_in

SLOTS = 300
RUNGS = 24  # inner budgets tried: the chain knows nothing of what lives inside a layer's backward

Vector = NDArray[np.float64]


Passes = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Rung:
    """One plan: its forward passes in the backward phase, what a microbatch takes, and its peak activation bytes."""

    passes: Passes
    end_ns: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Per layer: time of its forward, bytes of its input from other layers, bytes of all that backward reads of it."""

    forward_ns: tuple[int, ...]
    input_bytes: tuple[int, ...]
    saved_bytes: tuple[int, ...]


def solve(problem: Problem) -> Solution:
    """The shortest step of a fixed ladder of inner budgets that fits, so that more budget never gives a slower plan."""
    analysis = analysis_of(problem.index)
    if analysis.none.peak_bytes <= problem.activation_budget_bytes:
        return Solution(items=analysis.none.items, status=NOT_NEEDED)
    rungs = ladder_of(analysis)
    fitting = [rung for rung in rungs if rung.peak_bytes <= problem.activation_budget_bytes]
    if fitting:
        best = min(fitting, key=lambda rung: (rung.end_ns, rung.peak_bytes))
        return Solution(items=order_of(analysis, best.passes), status=FEASIBLE)
    least = min(rungs, key=lambda rung: rung.peak_bytes)
    minimum = problem.graph.static.total_bytes + least.peak_bytes
    return Solution(items=order_of(analysis, least.passes), status=FEASIBLE, minimum_budget_bytes=minimum)


_KNOWN: WeakKeyDictionary[Analysis, tuple[Rung, ...]] = WeakKeyDictionary()


def ladder_of(analysis: Analysis) -> tuple[Rung, ...]:
    """The plans of all inner budgets, simulated; made at most once per graph. The first one recomputes nothing."""
    known = _KNOWN.get(analysis)
    if known is None:
        known = _KNOWN[analysis] = _ladder(analysis)
    return known


def _ladder(analysis: Analysis) -> tuple[Rung, ...]:
    chain, none = chain_of(analysis), analysis.none
    rungs: dict[Passes, Rung] = {(): Rung((), none.end_ns, none.peak_bytes)}
    for step in range(RUNGS, 0, -1):
        passes = plan_chain(chain, sum(chain.saved_bytes) * (step / RUNGS) ** 1.5)
        if passes is not None and passes not in rungs:
            scored = score(analysis.index.graph, order_of(analysis, passes))
            rungs[passes] = Rung(passes, scored.end_ns, scored.peak_bytes)
    return tuple(rungs.values())


def chain_of(analysis: Analysis) -> Chain:
    """The layers of a graph as a chain."""
    facts, graph = analysis.whole, analysis.whole.index.graph
    forward, inputs, saved = [], [], []
    for layer in graph.layers:
        ops = [op for op in layer.ops if facts.is_forward(op)]
        forward.append(sum(graph.ops[op].time_ns + graph.ops[op].comm_ns for op in ops))
        inside = {s for op in ops for s in facts.pieces[op]}
        entering = {s for op in ops for s in facts.reads[op]} - inside
        inputs.append(sum(graph.storages[s].bytes for s in entering))
        saved.append(sum(graph.storages[s].bytes for s in inside if facts.saved[s]))
    return Chain(forward_ns=tuple(forward), input_bytes=tuple(inputs), saved_bytes=tuple(saved))


def plan_chain(chain: Chain, budget: float) -> Passes | None:
    """Forward passes of the backward phase: (layer before whose backward they run, layers in order); or None."""
    table = _Table(chain, budget)
    last = len(chain.forward_ns) - 1
    if not np.isfinite(table.cost[0, last][SLOTS]):
        return None
    passes: list[tuple[int, tuple[int, ...]]] = []
    table.trace(0, last, SLOTS, True, passes)
    return tuple(passes)


class _Table:
    """cost[i, j][m]: least forward time to do layers i..j with m slots and the input of i at hand; and what to do."""

    def __init__(self, chain: Chain, budget: float) -> None:
        self.chain = chain
        unit = max(1.0, budget / SLOTS)
        self.inputs = [int(np.ceil(size / unit)) for size in chain.input_bytes]
        self.saved = [int(np.ceil(size / unit)) for size in chain.saved_bytes]
        self.prefix = np.concatenate([[0.0], np.cumsum(np.array(chain.forward_ns, dtype=np.float64))])
        self.cost: dict[tuple[int, int], Vector] = {}
        self.choice: dict[tuple[int, int], NDArray[np.int64]] = {}
        count = len(chain.forward_ns)
        for length in range(count):
            for i in range(count - length):
                self._fill(i, i + length)

    def _fill(self, i: int, j: int) -> None:
        """Choice -1: keep all of layer i; k > i: keep only the input of k, and come back."""
        options = [_shifted(self.cost[i + 1, j], self.saved[i]) if j > i else self._leaf(i)]
        options[0] = options[0] + self.chain.forward_ns[i]
        for k in range(i + 1, j + 1):
            ahead = self.prefix[k] - self.prefix[i]
            options.append(ahead + _shifted(self.cost[k, j], self.inputs[k]) + self.cost[i, k - 1])
        table = np.stack(options)
        which = table.argmin(axis=0)
        self.cost[i, j] = table.min(axis=0)
        self.choice[i, j] = np.where(which == 0, -1, i + which)

    def _leaf(self, i: int) -> Vector:
        found = np.zeros(SLOTS + 1)
        found[: min(self.saved[i], SLOTS + 1)] = np.inf
        return found

    def trace(self, i: int, j: int, slots: int, original: bool, passes: list[tuple[int, tuple[int, ...]]]) -> None:
        """The passes of layers i..j; while `original`, forward is the step's own."""
        choice = int(self.choice[i, j][slots])
        until = i + 1 if choice < 0 else choice
        if not original:
            passes.append((j, tuple(range(i, until))))
        if choice < 0:
            if j > i:
                self.trace(i + 1, j, slots - self.saved[i], original, passes)
            return
        self.trace(choice, j, slots - self.inputs[choice], original, passes)
        self.trace(i, choice - 1, slots, False, passes)


def _shifted(cost: Vector, slots: int) -> Vector:
    """What `cost` is with so many slots fewer."""
    found = np.full(len(cost), np.inf)
    if slots < len(cost):
        found[slots:] = cost[: len(cost) - slots]
    return found


def order_of(analysis: Analysis, passes: Passes) -> tuple[Item, ...]:
    """The order of `none` with these passes as copies."""
    index, none = analysis.whole.index, analysis.none
    graph = index.graph
    droppable = frozenset(droppable_in(analysis.whole, range(len(graph.layers))))
    first: dict[int, int] = {}
    for item in none.items:
        if graph.ops[item.op].phase is not Phase.FORWARD:
            first.setdefault(index.op_layer[item.op], item.op)
    copies: dict[int, list[int]] = {}
    for layer, again in passes:
        ops = [op for one in again for op in graph.layers[one].ops if op in droppable]
        if layer in first:
            copies.setdefault(first[layer], []).extend(ops)
    return with_copies(index, none.items, copies)
