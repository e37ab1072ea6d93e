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


def hard_knapsack(items: int = 200, rows: int = 10) -> Milp:
    """Many rows, and values near the sum of an item's weights (after Chu and Beasley): far from proven in minutes."""
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 1000, (rows, items)).astype(float)
    values = (weights.mean(axis=0) + rng.integers(0, 500, items)).tolist()
    milp = knapsack(values, weights[0].tolist(), weights[0].sum() / 2)
    for i in range(1, rows):
        milp.row(f"also[{i}]", list(enumerate(weights[i].tolist())), upper=weights[i].sum() / 2)
    return milp
