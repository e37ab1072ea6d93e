"""Small models for tests of the MILP wrapper: one that is solved at once, one that needs a search."""

from __future__ import annotations

import numpy as np

from lynx_plan.solve.milp import Milp


def knapsack(values: list[float], weights: list[float], capacity: float) -> Milp:
    """The most valuable items of at most `capacity`; taking nothing is always allowed."""
    milp = Milp()
    items = [milp.binary(f"take[{i}]", -value) for i, value in enumerate(values)]
    milp.row("capacity", list(zip(items, weights, strict=True)), upper=capacity)
    return milp


def hard_knapsack(items: int = 60, rows: int = 20) -> Milp:
    """Values like weights, and many more rows: not proven within millions of nodes."""
    rng = np.random.default_rng(0)
    weights = [float(w) for w in rng.integers(1000, 2000, items)]
    milp = knapsack(weights, weights, sum(weights) / 2 + 0.5)
    for i in range(rows):
        row = [(j, float(w)) for j, w in enumerate(rng.integers(1, 1000, items))]
        milp.row(f"also[{i}]", row, upper=sum(w for _, w in row) / 2)
    return milp
