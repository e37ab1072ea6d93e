"""Baseline `none`: nothing is recomputed."""

from __future__ import annotations

from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import NOT_NEEDED, Problem, Solution


def solve(problem: Problem) -> Solution:
    """Keep everything that backward reads."""
    return Solution(items=analysis_of(problem.index).none.items, status=NOT_NEEDED)
