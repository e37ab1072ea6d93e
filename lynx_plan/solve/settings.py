"""Baselines with a free parameter: the setting as text, and the best of several by the exact simulator."""

from __future__ import annotations

from collections.abc import Iterable

from lynx_plan.errors import LynxError
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import FEASIBLE, NOT_NEEDED, Problem, Solution
from lynx_plan.solve.order import Decisions, Placement, build_order
from lynx_plan.solve.score import Scored, score


def number_setting(text: str, algo: str, what: str) -> int:
    """`N` of `algo:N`; 0 where none is given. LynxError for anything but a number from 1."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or not int(text):
        hint = f"write for example --algo {algo}:2, or --algo {algo} for the best that fits"
        raise LynxError(f"'{text}' is not a number of {what}", where="--algo", hint=hint)
    return int(text)


def best_setting(problem: Problem, settings: Iterable[list[Placement]], needs: str) -> Solution:
    """The shortest simulated step of those that fit the budget; else the least peak, as the smallest budget.

    Settings that recompute nothing at all say that the model has none of what this baseline `needs`.
    """
    best: Scored | None = None
    least: Scored | None = None
    recomputes = False
    for placements in settings:
        recomputes = recomputes or bool(placements)
        scored = scored_of(problem, placements)
        if least is None or scored.peak_bytes < least.peak_bytes:
            least = scored
        if scored.peak_bytes <= problem.activation_budget_bytes and (best is None or scored.rank < best.rank):
            best = scored
    if least is None:
        least = analysis_of(problem.index).none
    notes = () if recomputes else (f"the model has no {needs}, so this algorithm recomputes nothing",)
    if best is not None or not recomputes:
        return Solution(items=(best or least).items, status=FEASIBLE if recomputes else NOT_NEEDED, notes=notes)
    minimum = problem.graph.static.total_bytes + least.peak_bytes
    return Solution(items=least.items, status=FEASIBLE, minimum_budget_bytes=minimum)


def scored_of(problem: Problem, placements: Iterable[Placement]) -> Scored:
    """The order of these decisions, simulated."""
    analysis = analysis_of(problem.index)
    decisions = Decisions(placements=tuple(placements))
    items = build_order(problem.index, decisions, skeleton=analysis.whole_skeleton)
    return score(problem.graph, items, idle_ns=problem.idle_ns)
