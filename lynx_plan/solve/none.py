"""Baseline `none`: nothing is recomputed."""

from __future__ import annotations

from lynx_plan.solve.base import NOT_NEEDED, Problem, Solution
from lynx_plan.solve.order import Decisions, build_order


def solve(problem: Problem) -> Solution:
    """Keep everything that backward reads."""
    return Solution(items=build_order(problem.index, Decisions()), status=NOT_NEEDED)
