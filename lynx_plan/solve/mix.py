"""The mix of policies over a stage's layers: exact by dynamic programming over layers, given each layer's frontier.

While a layer runs, forward or backward, what the layers before it freed is gone from memory; so a layer's policy is
legal if its peak less what all layers before it free fits the budget. States are (bytes freed, cost), Pareto-pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
STATES = 4096  # per layer; more are thinned out evenly, which is said by `Mix.exact`


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A layer's frontier as arrays of one length: exposed time, bytes freed, bytes at the peak."""

    cost: Vector
    freed: Vector
    peak: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Per layer the number of the chosen option; the whole cost; whether no state was thinned out."""

    chosen: tuple[int, ...]
    cost: float
    exact: bool


def best_mix(layers: Sequence[Options], budget: float) -> Mix | None:
    """The cheapest legal choice of one option per layer, in forward order; of equally cheap ones the one that frees
    most. None without one."""
    freed, cost = np.zeros(1), np.zeros(1)
    steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    exact = True
    for options in layers:
        legal = options.peak[None, :] <= budget + freed[:, None]
        before, option = np.nonzero(legal)
        if not len(before):
            return None
        freed = freed[before] + options.freed[option]
        cost = cost[before] + options.cost[option]
        kept = _undominated(freed, cost)
        if len(kept) > STATES:
            exact = False
            kept = kept[np.unique(np.linspace(0, len(kept) - 1, STATES).round().astype(np.int64))]
        freed, cost = freed[kept], cost[kept]
        steps.append((before[kept], option[kept]))
    state = int(np.lexsort((-freed, cost))[0])
    whole = float(cost[state])
    chosen = []
    for before, option in reversed(steps):
        chosen.append(int(option[state]))
        state = int(before[state])
    return Mix(chosen=tuple(reversed(chosen)), cost=whole, exact=exact)


def least_budget(layers: Sequence[Options]) -> float:
    """The smallest budget for which there is a mix: each layer frees what it can while it stays under it."""
    low, high = 0.0, max((float(options.peak.min()) for options in layers), default=0.0)
    while high - low > 1.0 and high - low > 1e-6 * high:
        middle = (low + high) / 2
        freed, fits = 0.0, True
        for options in layers:
            legal = options.peak <= middle + freed
            if not legal.any():
                fits = False
                break
            freed += float(options.freed[legal].max())
        low, high = (low, middle) if fits else (middle, high)
    return high


def _undominated(freed: Vector, cost: Vector) -> NDArray[np.int64]:
    """Indices of the states that no other one beats in both, by rising cost; of equal ones, the first."""
    order = np.lexsort((-freed, cost))
    most = np.maximum.accumulate(freed[order])
    new = np.ones(len(order), dtype=bool)
    new[1:] = freed[order][1:] > most[:-1]
    found: NDArray[np.int64] = order[new]
    return found
