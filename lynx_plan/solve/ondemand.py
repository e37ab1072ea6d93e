"""Baseline `ondemand`: the best plan that recomputes on demand only, HEU's own search with every window closed."""

from __future__ import annotations

from lynx_plan.solve.base import Problem, Solution
from lynx_plan.solve.heu import search


def solve(problem: Problem) -> Solution:
    """The best on-demand plan."""
    return search(problem, windows_open=False)
