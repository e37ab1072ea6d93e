"""The mix of policies over a stage's layers: exact by dynamic programming over layers, given each layer's frontier.

While a layer runs, forward or backward, what the layers before it freed is gone from memory; so a layer's policy is
legal if its peak less what all layers before it free fits the budget. States are (bytes freed, cost), Pareto-pruned,
and cut where even the linear relaxation of what is left costs more than a mix that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
FEW = 96  # states of the first, inexact pass, whose mix bounds the second one
STATES = 4096  # per layer in the second; more are thinned out evenly, which `Mix.exact` says


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A layer's frontier as arrays of one length: exposed time, bytes freed, bytes at the peak."""

    cost: Vector
    freed: Vector
    peak: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Per layer the number of its option; the whole cost; bytes at the peak; whether no state was thinned out."""

    chosen: tuple[int, ...]
    cost: float
    peak: float
    exact: bool


def best_mix(layers: Sequence[Options], budget: float, states: int | None = None) -> Mix | None:
    """The cheapest legal choice of one option per layer, in forward order. None without one. `states`: at most."""
    first = _pass(layers, budget, FEW, None, float("inf"))
    bounds = _Bounds(layers, budget)
    if first is not None and first.cost <= bounds.rest(0, np.zeros(1))[0]:
        return first
    limit = first.cost if first is not None else float("inf")
    return _pass(layers, budget, states or STATES, bounds, limit) or first


def _pass(layers: Sequence[Options], budget: float, states: int, bounds: _Bounds | None, limit: float) -> Mix | None:
    """Layer after layer, keeping at most `states`; those that cannot end at `limit` or below are cut."""
    freed, cost = np.zeros(1), np.zeros(1)
    steps: list[tuple[Ints, Ints]] = []
    exact = True
    for number, options in enumerate(layers):
        before, option = np.nonzero(options.peak[None, :] <= budget + freed[:, None])
        freed, cost = freed[before] + options.freed[option], cost[before] + options.cost[option]
        if bounds is not None:
            able = np.flatnonzero(cost + bounds.rest(number + 1, freed) <= limit)
            before, option, freed, cost = before[able], option[able], freed[able], cost[able]
        if not len(before):
            return None
        kept = _undominated(freed, cost)
        if len(kept) > states:
            exact = False
            kept = kept[np.unique(np.linspace(0, len(kept) - 1, states).round().astype(np.int64))]
        freed, cost = freed[kept], cost[kept]
        steps.append((before[kept], option[kept]))
    state = int(np.argmin(cost))
    chosen = trace(steps, state)
    return Mix(chosen=tuple(chosen), cost=float(cost[state]), peak=peak_of(layers, chosen), exact=exact)


def trace(steps: list[tuple[Ints, Ints]], state: int) -> list[int]:
    chosen = []
    for before, option in reversed(steps):
        chosen.append(int(option[state]))
        state = int(before[state])
    return chosen[::-1]


def peak_of(layers: Sequence[Options], chosen: Sequence[int]) -> float:
    """Bytes at the highest peak of any layer."""
    peak = freed = 0.0
    for options, number in zip(layers, chosen, strict=True):
        peak = max(peak, float(options.peak[number]) - freed)
        freed += float(options.freed[number])
    return peak


class _Bounds:
    """What must be freed yet before the layer of the highest least peak, and what that costs at least."""

    def __init__(self, layers: Sequence[Options], budget: float) -> None:
        least = [float(options.peak.min()) for options in layers]
        self.tight = int(np.argmax(least))
        self.needed = least[self.tight] - budget
        steps = [hull(options) for options in layers[: self.tight]]
        self.curves: list[tuple[Vector, Vector]] = []
        for number in range(self.tight):
            freed = np.concatenate([step[0] for step in steps[number:]])
            cost = np.concatenate([step[1] for step in steps[number:]])
            order = np.argsort(cost / freed, kind="stable")
            self.curves.append(
                (np.concatenate([[0.0], freed[order].cumsum()]), np.concatenate([[0.0], cost[order].cumsum()]))
            )

    def rest(self, number: int, freed: Vector) -> Vector:
        """The least cost of layers from `number` on, for states that have freed so much; infinite if not enough."""
        if number >= self.tight:
            return np.where(freed >= self.needed, 0.0, np.inf) if number == self.tight else np.zeros(len(freed))
        curve = self.curves[number]
        short = np.maximum(0.0, self.needed - freed)
        found: Vector = np.where(short <= curve[0][-1] + 1.0, np.interp(short, *curve) * (1 - 1e-9), np.inf)
        return found


def hull(options: Options) -> tuple[Vector, Vector]:
    """The lower convex hull of cost over bytes freed, from keeping everything: steps of freed bytes and of cost."""
    freed, cost = [0.0], [0.0]
    for i in np.lexsort((options.cost, options.freed)).tolist():
        x, y = float(options.freed[i]), float(options.cost[i])
        if x <= freed[-1]:
            continue
        while len(freed) > 1 and (cost[-1] - cost[-2]) * (x - freed[-1]) >= (y - cost[-1]) * (freed[-1] - freed[-2]):
            freed.pop()
            cost.pop()
        freed.append(x)
        cost.append(y)
    return np.diff(freed), np.diff(cost)


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


def _undominated(freed: Vector, cost: Vector) -> Ints:
    """Indices of the states by rising cost, without those that free no more than a cheaper one."""
    order = np.argsort(cost, kind="stable")
    rising = freed[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = rising[1:] > np.maximum.accumulate(rising)[:-1]
    found: Ints = order[new]
    return found
