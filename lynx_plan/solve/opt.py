"""OPT: the MILP over all layers of a stage, started from HEU's answer, with a proof of how good it is.

What is proven is proven of the MILP: windows of the layer itself and of `LOOK_AHEAD` layers before it in backward, one
copy per op, room read from the order of `none`. Of its answer and HEU's, the one with the shorter simulated step wins.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve import heu
from lynx_plan.solve.analysis import Analysis, analysis_of
from lynx_plan.solve.apart import Limits, solve_apart
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, OPTIMAL, Problem, Progress, Solution
from lynx_plan.solve.heu_stage import stage_of
from lynx_plan.solve.interleave import faster
from lynx_plan.solve.milp import MilpProgress, MilpResult, MilpStatus
from lynx_plan.solve.order import Decisions, build_order
from lynx_plan.solve.places import Place
from lynx_plan.solve.score import Scored, score
from lynx_plan.solve.stage_milp import StageMilp
from lynx_plan.solve.stage_model import LOOK_AHEAD, StageModel

ROUNDS = 3  # solves: the first, and again under a budget lowered by what the exact simulator found


def solve(problem: Problem) -> Solution:
    """The best plan of the MILP and of HEU."""
    analysis = analysis_of(problem.index)
    if analysis.none.peak_bytes <= problem.activation_budget_bytes:
        return faster(problem, Solution(items=analysis.none.items, status=NOT_NEEDED))
    return _interleaved(problem, _Opt(problem, analysis).run())


def _interleaved(problem: Problem, plain: Solution) -> Solution:
    """HEU's interleaved step where that is faster; what was proven holds for one microbatch after the other."""
    found = faster(problem, plain)
    if found.step is None:
        return plain
    note = "opt: proven for one microbatch after the other; microbatches that interleave are faster"
    return replace(found, facts=(("look-ahead", str(LOOK_AHEAD)), ("interleaved", "yes")), notes=(*found.notes, note))


class _Opt:
    """One problem: HEU's answer, the MILP, and the best that fits."""

    def __init__(self, problem: Problem, analysis: Analysis) -> None:
        self.problem, self.analysis = problem, analysis
        self.budget = problem.activation_budget_bytes
        self.began = time.monotonic()
        self.stage = StageModel(analysis.candidates, analysis.none, idle_ns=problem.idle_ns)
        self.milp = StageMilp(self.stage, analysis.none.end_ns)
        self.search = heu.Search(problem, stage_of(analysis, windows_open=True))
        self.heu = self.search.run()
        self.best: Scored | None = None
        if self.heu.minimum_budget_bytes is None:
            self.best = score(problem.graph, self.heu.items, idle_ns=problem.idle_ns)

    def run(self) -> Solution:
        first, last = self._solve()
        notes = [f"opt: {note}" for note in dict.fromkeys((first.note, last.note)) if note]
        if self.best is None:
            return Solution(
                items=self.heu.items,
                status=FEASIBLE,
                notes=tuple(notes),
                minimum_budget_bytes=self.heu.minimum_budget_bytes,
            )
        gap = self._gap(first, last)
        proven = gap <= self.problem.effort.gap
        shown = f"gap {gap:.2%}" if np.isfinite(gap) else "nothing proven: HEU's plan stands"
        notes.append(f"opt: {time.monotonic() - self.began:.1f} s, {first.nodes} nodes, {shown}")
        return Solution(
            items=self.best.items,
            status=OPTIMAL if proven else FEASIBLE,
            notes=tuple(notes),
            facts=self._facts(first, gap),
        )

    def _solve(self) -> tuple[MilpResult, MilpResult]:
        """Solve, and again under less while the exact peak is over the budget; the first result and the last."""
        inner, results = self.budget, []
        start = self._start()
        for _ in range(ROUNDS):
            self.milp.set_budget(inner)
            results.append(solve_apart(self.milp.milp, self._limits(), start=start, report=self._report))
            if not results[-1].solved:
                break
            over = self._try(results[-1].values) - self.budget
            if over <= 0 or results[-1].note:
                break
            inner, start = inner - over, None
        return results[0], results[-1]

    def _limits(self) -> Limits:
        spent = time.monotonic() - self.began
        return Limits(gap=self.problem.effort.gap, time_limit_s=max(1.0, self.problem.effort.time_limit_s - spent))

    def _try(self, values: NDArray[np.float64]) -> int:
        """Order and simulate a solution; its exact peak."""
        decisions = Decisions(placements=tuple(self.milp.placements(values)))
        items = build_order(self.analysis.index, decisions, skeleton=self.analysis.skeleton)
        scored = score(self.problem.graph, items, idle_ns=self.problem.idle_ns)
        if scored.peak_bytes <= self.budget and (self.best is None or scored.rank < self.best.rank):
            self.best = scored
        return scored.peak_bytes

    def _step_ns(self, objective: float) -> int:
        """A value of the MILP's objective as the time of a step."""
        if not np.isfinite(objective):
            return 0
        end_ns = round(objective * self.milp.time_unit)
        end_ns += self.problem.idle_ns
        return self.problem.micro_batches * end_ns + self.problem.graph.optimizer_ns

    def _gap(self, first: MilpResult, last: MilpResult) -> float:
        """Of the last answer to the first bound, which holds for the budget as it was given."""
        if first.status is MilpStatus.INFEASIBLE or not np.isfinite(first.bound) or not np.isfinite(last.objective):
            return float("inf")
        return max(0.0, (last.objective - first.bound) / last.objective)

    def _facts(self, first: MilpResult, gap: float) -> tuple[tuple[str, str], ...]:
        return (
            ("look-ahead", str(LOOK_AHEAD)),
            ("bound_ns", str(self._step_ns(first.bound))),
            ("gap", f"{gap:.6f}"),
            ("nodes", str(first.nodes)),
        )

    def _report(self, progress: MilpProgress) -> None:
        if self.problem.effort.report is None:
            return
        best, bound = progress.objective, progress.bound
        gap = (best - bound) / best if np.isfinite(bound) and best else float("inf")
        self.problem.effort.report(
            Progress(incumbent_ns=self._step_ns(best), bound_ns=self._step_ns(bound), gap=gap, nodes=progress.nodes)
        )

    def _start(self) -> NDArray[np.float64] | None:
        """HEU's answer as values of the MILP's columns, if there is one."""
        if self.search.mix is None:
            return None
        chosen = [self._places(layer, number) for layer, number in enumerate(self.search.mix.chosen)]
        return self.milp.start(chosen)

    def _places(self, layer: int, number: int) -> Sequence[Place | None]:
        model, variant = self.milp.layers[layer], self.search.stage.variants[layer]
        if variant is None:
            return (None,) * len(model.places)
        policy = variant.policies[number].places
        if len(policy) != len(model.places):
            return (None,) * len(model.places)
        home = variant.model
        return [
            None if place is None else self._counterpart(place, home.places[i], model.places[i], layer - home.layer)
            for i, place in enumerate(policy)
        ]

    def _counterpart(self, place: Place, theirs: Sequence[Place], ours: Sequence[Place], offset: int) -> Place | None:
        """The place of a layer that is what `place` is of the layer `offset` before it."""
        if place.on_demand:
            demands = [p for p in ours if p.on_demand]
            which = [p for p in theirs if p.on_demand].index(place)
            return demands[min(which, len(demands) - 1)] if demands else None
        window = self.search.stage.model.windows[place.window]
        slot = self.analysis.index.op_slot[window.launch]
        launch = self.problem.index.graph.layers[window.layer + offset].ops[slot]
        return next((p for p in ours if not p.on_demand and self.stage.windows[p.window].launch == launch), None)
