"""HEU: the frontier of policies of each layer class, and the best mix of them over the stage's layers.

The paper gives all layers of a class one policy (`heu-uniform`); here layers may differ, so that the budget is used
up. Frontiers are enumerated once per class (and neighbour), the mix is exact for them, and orders are judged exactly.
"""

from __future__ import annotations

from dataclasses import replace

from lynx_plan.solve import rotor
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, OPTIMAL, Problem, Solution
from lynx_plan.solve.full import full_decisions
from lynx_plan.solve.heu_stage import Stage, stage_of
from lynx_plan.solve.interleave import faster
from lynx_plan.solve.mix import Mix, best_mix, least_budget
from lynx_plan.solve.order import Decisions, Placement, build_order
from lynx_plan.solve.score import Scored, score
from lynx_plan.solve.stage_model import LOOK_AHEAD

ROUNDS = 8  # mixes tried: the first, and again under a budget corrected by what the exact simulator found
TWICE = "recomputing each layer once needs more memory than this budget: layers are recomputed several times (rotor)"
NEAR = 1.01  # orders whose peak is this near to the budget are written again, with memory in mind
STEP = 1e-5  # share of the budget by which it is lowered at least
SLACK = 0.005  # share of the budget that is not worth another mix


def solve(problem: Problem) -> Solution:
    """The best mix with recomputation in windows or on demand; microbatches interleave where that is faster."""
    return faster(problem, search(problem, windows_open=True))


def search(problem: Problem, *, windows_open: bool) -> Solution:
    """HEU, or the same with every window closed (`ondemand`)."""
    analysis = analysis_of(problem.index)
    if analysis.none.peak_bytes <= problem.activation_budget_bytes:
        return Solution(items=analysis.none.items, status=NOT_NEEDED)
    return Search(problem, stage_of(analysis, windows_open=windows_open)).run()


class Search:
    """One budget: what was tried, and the best that fits."""

    def __init__(self, problem: Problem, stage: Stage) -> None:
        self.problem = problem
        self.stage = stage
        self.analysis = stage.analysis
        self.budget = problem.activation_budget_bytes
        self.best: Scored | None = None
        self.least: Scored = self.analysis.none
        self.exact = True
        self.notes: tuple[str, ...] = ()
        self.mix: Mix | None = None  # of the best

    def run(self) -> Solution:
        """Mixes under a corrected budget; if none fits, the one of least peak, then full recomputation."""
        self._fit()
        if self.best is not None and self.problem.idle_ns and self.mix is not None:
            self._use_given(self.stage.placements(self.mix))
        if self.best is None:
            self._least()
        if self.best is None:
            self._lower()
        facts = (("look-ahead", str(LOOK_AHEAD)),)
        if self.best is not None and self.best.peak_bytes <= self.problem.activation_budget_bytes:
            return Solution(
                items=self.best.items, status=OPTIMAL if self.exact else FEASIBLE, facts=facts, notes=self.notes
            )
        minimum = self.problem.graph.static.total_bytes + self.least.peak_bytes
        return Solution(items=self.least.items, status=FEASIBLE, minimum_budget_bytes=minimum)

    def _fit(self) -> None:
        """Mixes under the budget `inner`, corrected by the exact peak of each: lower until one fits, then up once."""
        inner, last = float(self.budget), self.best
        for _ in range(ROUNDS):
            fitted = self.best is not None
            mix = best_mix(self.stage.options, inner)
            if mix is None:
                return
            self.exact &= mix.exact
            placements = self.stage.placements(mix)
            scored = self._try(placements)
            if (
                self.budget < scored.peak_bytes < NEAR * self.budget
            ):  # weight gradients that wait may be what is too much
                self._try(placements, limit_bytes=self.budget)
            if self.best is not None and self.best is not last:
                self.mix, last = mix, self.best
            over = scored.peak_bytes - self.budget
            if over > 0:
                inner = min(inner, mix.peak) - max(over, STEP * self.budget)
            elif fitted or -over <= SLACK * self.budget or scored.end_ns <= self.analysis.none.end_ns:
                return
            else:
                inner = max(inner, mix.peak - over)

    def _use_given(self, placements: list[Placement]) -> None:
        """Move what the last layers make on demand into the given windows before the backward pass: as many layers as
        they hold, or fewer where the peak does not allow it."""
        ops, layer_of = self.problem.graph.ops, self.analysis.index.op_layer
        demands: dict[int, list[int]] = {}
        for placement in placements:
            if placement.window < 0:
                demands.setdefault(layer_of[placement.op], []).append(placement.op)
        room, held = self.problem.idle_ns, []
        for layer in sorted(demands, reverse=True):
            room -= sum(ops[op].time_ns + ops[op].comm_ns for op in demands[layer])
            if room < 0:
                break
            held.append(layer)
        count = len(held)
        while count:
            early = frozenset(held[:count])
            moved = [replace(p, early=True) if p.window < 0 and layer_of[p.op] in early else p for p in placements]
            if self._try(moved).peak_bytes <= self.budget:
                return
            count //= 2

    def _least(self) -> None:
        """The smallest peak that mixes reach; else layers recomputed several times; else full recomputation."""
        inner = least_budget(self.stage.options)
        mix = best_mix(self.stage.options, inner)
        if mix is not None:
            self._try(self.stage.placements(mix))
        if self.best is None:
            self._chain()
        if self.best is None:
            blocks = list(full_decisions(self.analysis.index, self.analysis.candidates).placements)
            self._try(blocks)
            self._try([Placement(op=placement.op) for placement in blocks])

    def _chain(self) -> None:
        """Layers recomputed several times: for budgets that nothing recomputed once can meet."""
        found = rotor.solve(self.problem)
        if found.minimum_budget_bytes is None:
            self.notes = (TWICE,)
        self._keep(score(self.problem.graph, found.items, idle_ns=self.problem.idle_ns))

    def _lower(self) -> None:
        """Whatever a mix under the least peak so far finds below it."""
        for _ in range(ROUNDS):
            self.best, self.budget = None, self.least.peak_bytes - 1
            self._fit()
            if self.best is None:
                return

    def _try(self, placements: list[Placement], limit_bytes: int | None = None) -> Scored:
        """Order and simulate; remember it if it is the best that fits, or the smallest."""
        decisions = Decisions(placements=tuple(placements), limit_bytes=limit_bytes)
        items = build_order(self.analysis.index, decisions, skeleton=self.analysis.skeleton)
        return self._keep(score(self.problem.graph, items, idle_ns=self.problem.idle_ns))

    def _keep(self, scored: Scored) -> Scored:
        if scored.peak_bytes < self.least.peak_bytes:
            self.least = scored
        if scored.peak_bytes <= self.budget and (self.best is None or scored.rank < self.best.rank):
            self.best = scored
        return scored
