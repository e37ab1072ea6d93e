"""Baseline `checkmate`: what to recompute when, by Checkmate's MILP; no overlap of recomputation is modelled.

A graph of at most `EXACT` nodes is solved whole. Larger ones are solved per layer class, for several amounts of kept
bytes, and layers are given the best mix of those schedules, as HEU's layers are: a stronger form than one for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lynx_plan.model.program import Item
from lynx_plan.solve.analysis import Analysis, analysis_of
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, OPTIMAL, Effort, Problem, Solution
from lynx_plan.solve.mix import Options, best_mix, least_budget
from lynx_plan.solve.remat_milp import RematMilp
from lynx_plan.solve.remat_nodes import Part, coarsened, part_of
from lynx_plan.solve.remat_order import with_copies
from lynx_plan.solve.score import Scored, score

EXACT = 100  # nodes
AMOUNTS = 10  # of kept bytes per layer class
ROUNDS = 6  # inner budgets, corrected by the exact peak
NEGLIGIBLE = 0.001  # layers that save less than this share of the peak keep everything

Passes = dict[int, list[int]]  # backward op -> forward ops that run again before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """A layer's frontier: its options, and what each recomputes before which of the layer's backward ops."""

    options: Options
    passes: tuple[Passes, ...]
    layer: int
    gap: float


def solve(problem: Problem) -> Solution:
    """The best schedule that fits, by the exact simulator."""
    analysis = analysis_of(problem.index)
    if analysis.none.peak_bytes <= problem.activation_budget_bytes:
        return Solution(items=analysis.none.items, status=NOT_NEEDED)
    graph = analysis.index.graph
    whole = part_of(analysis, range(len(graph.ops)), lambda op: analysis.candidates.recomputable[op])
    search = _Search(problem, analysis)
    exact = len(whole.nodes) <= EXACT
    gap = search.exactly(whole) if exact else search.by_class()
    if search.best is None and exact:  # a limit stopped it, or nothing fits: per class there is an answer to both
        exact, gap = False, search.by_class()
    facts = (("gap", f"{gap:.6f}"), ("nodes-of-the-graph", str(len(whole.nodes))))
    if search.best is not None:
        status = OPTIMAL if gap <= problem.effort.gap and exact else FEASIBLE
        notes = (f"checkmate: gap {gap:.2%}, {'whole graph' if exact else 'per layer class'}",)
        return Solution(items=search.best.items, status=status, notes=notes, facts=facts)
    minimum = problem.graph.static.total_bytes + search.least.peak_bytes
    return Solution(items=search.least.items, status=FEASIBLE, minimum_budget_bytes=minimum)


class _Search:
    """One budget: what was tried, and the best that fits."""

    def __init__(self, problem: Problem, analysis: Analysis) -> None:
        self.problem, self.analysis = problem, analysis
        self.budget = problem.activation_budget_bytes
        self.best: Scored | None = None
        self.least = analysis.none

    def exactly(self, part: Part) -> float:
        """The whole graph, its budget corrected by the exact peak; the gap."""
        milp = RematMilp(part.nodes, part.forward)
        inner, gap = float(self.budget), 0.0
        for _ in range(ROUNDS):
            milp.set_budget(inner)
            effort = self.problem.effort
            result = milp.milp.solve(gap=effort.gap, time_limit_s=effort.time_limit_s)
            if not result.solved:
                break
            gap = max(gap, (result.objective - result.bound) / max(result.objective, 1e-9))
            scored = self.attempt(_passes(part, milp, result.values))
            over = scored.peak_bytes - self.budget
            if over <= 0:
                break
            inner -= over
        return gap

    def by_class(self) -> float:
        """The best mix of the layers' schedules, corrected by the exact peak; the largest gap."""
        layers = schedules_of(self.analysis, self.problem.effort)
        options = [schedule.options for schedule in layers]
        inner = float(self.budget)
        for _ in range(ROUNDS):
            mix = best_mix(options, inner)
            if mix is None:
                break
            over = self.attempt(self._mixed(layers, mix.chosen)).peak_bytes - self.budget
            if over <= 0:
                break
            inner = min(inner, mix.peak) - max(over, 1e-5 * self.budget)
        if self.best is None:
            mix = best_mix(options, least_budget(options))
            if mix is not None:
                self.attempt(self._mixed(layers, mix.chosen))
        return max((schedule.gap for schedule in layers), default=0.0)

    def _mixed(self, layers: tuple[Schedules, ...], chosen: Iterable[int]) -> Passes:
        index, found = self.analysis.index, Passes()
        for layer, (schedules, number) in enumerate(zip(layers, chosen, strict=True)):
            ops = index.graph.layers[layer].ops
            for before, again in schedules.passes[number].items():
                found[ops[index.op_slot[before]]] = [ops[index.op_slot[op]] for op in again]
        return found

    def attempt(self, passes: Passes) -> Scored:
        """Order and simulate; remember it if it is the best that fits, or the smallest."""
        items: tuple[Item, ...] = with_copies(self.analysis.index, self.analysis.none.items, passes)
        scored = score(self.problem.graph, items, idle_ns=self.problem.idle_ns)
        self.least = min(self.least, scored, key=lambda one: one.peak_bytes)
        if scored.peak_bytes <= self.budget and (self.best is None or scored.rank < self.best.rank):
            self.best = scored
        return scored


_KNOWN: WeakKeyDictionary[Analysis, dict[tuple[float, float], tuple[Schedules, ...]]] = WeakKeyDictionary()


def schedules_of(analysis: Analysis, effort: Effort) -> tuple[Schedules, ...]:
    """Per layer its frontier; made at most once per graph and effort."""
    known, key = _KNOWN.setdefault(analysis, {}), (effort.gap, effort.time_limit_s)
    if key not in known:
        known[key] = _schedules(analysis, effort)
    return known[key]


def _schedules(analysis: Analysis, effort: Effort) -> tuple[Schedules, ...]:
    found: dict[int, Schedules] = {}
    for group in analysis.classes:
        home = group.layers[len(group.layers) // 2]
        own = _layer_schedules(analysis, home, effort)
        for layer in group.layers:
            shift = _level(analysis, layer) - _level(analysis, home)
            options = Options(cost=own.options.cost, freed=own.options.freed, peak=own.options.peak + shift)
            found[layer] = Schedules(options=options, passes=own.passes, layer=layer, gap=own.gap)
    return tuple(found[layer] for layer in range(len(analysis.index.graph.layers)))


def _level(analysis: Analysis, layer: int) -> float:
    """Bytes of `none` at the layer's highest moment."""
    ops, curve = frozenset(analysis.index.graph.layers[layer].ops), analysis.none.memory.bytes
    return float(max(curve[i] for i, item in enumerate(analysis.none.items) if item.op in ops))


def _layer_schedules(analysis: Analysis, layer: int, effort: Effort) -> Schedules:
    """Schedules of a layer for `AMOUNTS` shares of what it keeps."""
    ops = analysis.index.graph.layers[layer].ops
    part = coarsened(part_of(analysis, ops, analysis.candidates.droppable))
    milp = RematMilp(part.nodes, part.forward)
    keeping = milp.keeping_all()
    saved, peak, level = milp.saved_bytes(keeping), milp.peak_bytes(keeping), _level(analysis, layer)
    milp.set_budget(max(peak, float(max(keeping[c] for c in milp.u.values())) * (1 << 20)) + 1.0)
    base = sum(node.time_ns for node in part.nodes)
    rows: list[tuple[float, float, float, Passes]] = [(0.0, 0.0, level, {})]
    gap = 0.0
    amounts = range(AMOUNTS - 1, -1, -1) if saved >= NEGLIGIBLE * analysis.none.peak_bytes else range(0)
    for step in amounts:
        milp.set_saved(saved * step / AMOUNTS)
        result = milp.milp.solve(gap=effort.gap, time_limit_s=effort.time_limit_s / AMOUNTS)
        if not result.solved:
            break
        gap = max(gap, (result.objective - result.bound) / max(result.objective, 1e-9))
        cost = result.objective * milp.time_unit - base
        freed = saved - milp.saved_bytes(result.values)
        above = milp.peak_bytes(result.values) - peak
        rows.append((max(0.0, cost), freed, level + above, _passes(part, milp, result.values)))
    costs, frees, peaks = (np.array(column, dtype=np.float64) for column in zip(*[r[:3] for r in rows], strict=True))
    options = Options(cost=costs, freed=frees, peak=peaks)
    return Schedules(options=options, passes=tuple(row[3] for row in rows), layer=layer, gap=gap)


def _passes(part: Part, milp: RematMilp, values: NDArray[np.float64]) -> Passes:
    """Before the first op of a stage's node, the ops of the nodes computed again in that stage."""
    return {
        part.ops[stage][0]: [op for node in nodes for op in part.ops[node]]
        for stage, nodes in milp.recomputed(values).items()
    }
