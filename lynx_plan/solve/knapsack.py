"""Baseline `knapsack[:dp|:greedy]`: what to keep as a 0/1 knapsack of bytes and recompute time, all on demand.

As PyTorch's activation memory budget: each value that backward reads has a size and the time of its op; the knapsack
keeps the values that save most time within an inner budget, by dynamic programming on quantised sizes or greedily by
time per byte. Neither chains nor lifetimes enter, so the inner budget is swept and the best that fits is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lynx_plan.errors import LynxError
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.order import Placement
from lynx_plan.solve.settings import best_setting

STEPS = 40  # inner budgets of the sweep
SLOTS = 1000  # sizes of the dynamic program, as parts of all bytes

Pick = Callable[[Sequence[int], Sequence[int], float], list[bool]]


def solve(problem: Problem) -> Solution:
    """The shortest step of a sweep over inner budgets."""
    pick = {"": by_dynamic_program, "dp": by_dynamic_program, "greedy": greedily}.get(problem.setting)
    if pick is None:
        hint = "write --algo knapsack:dp or --algo knapsack:greedy"
        raise LynxError(f"'{problem.setting}' is no knapsack", where="--algo", hint=hint)
    facts = analysis_of(problem.index).whole
    return best_setting(problem, _settings(facts, pick), "values that may be recomputed")


def _settings(facts: Candidates, pick: Pick) -> Iterator[list[Placement]]:
    graph = facts.index.graph
    ops = [op.id for op in graph.ops if facts.is_forward(op.id) and facts.droppable(op.id)]
    saved = [op for op in ops if facts.read[op]]
    sizes = [sum(graph.storages[s].bytes for s in facts.pieces[op] if facts.saved[s]) for op in saved]
    times = [graph.ops[op].time_ns + graph.ops[op].comm_ns for op in saved]
    helpers = [op for op in ops if not facts.read[op]]
    for step in range(STEPS + 1):
        kept = pick(sizes, times, sum(sizes) * step / STEPS)
        drop = [op for op, keep in zip(saved, kept, strict=True) if not keep]
        yield [Placement(op=op) for op in facts.closure([*drop, *helpers])]


def by_dynamic_program(sizes: Sequence[int], times: Sequence[int], budget: float) -> list[bool]:
    """What to keep for the most time within the budget; sizes are rounded up to `SLOTS` parts of their sum."""
    unit = max(1.0, sum(sizes) / SLOTS)
    slots = int(budget // unit)
    best = np.zeros(slots + 1)
    takes = []
    for size, time in zip(sizes, times, strict=True):
        weight = -int(-size // unit)
        taken = np.full(slots + 1, -1.0)
        if weight <= slots:
            taken[weight:] = best[: slots + 1 - weight] + time
        take = taken > best
        best = np.where(take, taken, best)
        takes.append(take)
    kept = []
    for size, take in zip(reversed(sizes), reversed(takes), strict=True):
        kept.append(bool(take[slots]))
        slots -= -int(-size // unit) if kept[-1] else 0
    return kept[::-1]


def greedily(sizes: Sequence[int], times: Sequence[int], budget: float) -> list[bool]:
    """What to keep, the most time per byte first, within the budget."""
    order = sorted(range(len(sizes)), key=lambda i: (-times[i] / max(1, sizes[i]), i))
    kept = [False] * len(sizes)
    for i in order:
        if sizes[i] <= budget:
            kept[i] = True
            budget -= sizes[i]
    return kept
