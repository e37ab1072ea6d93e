"""The mix of policies over a stage's layers where several microbatches are in flight: dynamic programming over layers.

A mix that frees F bytes of a microbatch frees them of each one in flight: the peak of the one at work may then be
`room + (in_flight - 1) F`. States are (bytes freed, cost, need): the need is the highest peak so far, less what was
freed before it. It counts only where it is above what later layers need anyway and above the room that there is
already, so most states have the same. They are Pareto-pruned, and cut where even the linear relaxation of what must
be freed yet costs more than a mix that is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lynx_plan.solve.mix import STATES, Ints, Mix, Options, Vector, best_mix, hull, peak_of, trace

FEW = 64  # states of the first pass, whose mix bounds the second one
BUCKETS = 12  # ranges of needs; within one, states are compared by bytes freed and cost only
ROUNDING = 1e-6  # bytes


def mix_in_flight(layers: Sequence[Options], *, room: float, in_flight: int, states: int = STATES) -> Mix | None:
    """The cheapest mix that fits; None without one.

    `room`: bytes for the peak of one microbatch if none of the others frees anything: the budget less static memory
    and less (in_flight - 1) times what a microbatch saves; may be negative. `states`: per layer at most. The mix's
    `peak` is that of one microbatch.
    """
    if in_flight == 1:
        return best_mix(layers, room, states)
    search = _Search(layers, room, in_flight - 1)
    first = search.run(FEW, None, float("inf"))
    if first is None or first.exact or first.cost <= 0.0:
        return first
    curves = [_curve(layers[number:]) for number in range(len(layers) + 1)]
    return search.run(states, curves, first.cost) or first


def freed_bytes(layers: Sequence[Options], mix: Mix) -> float:
    """What a mix frees of each microbatch."""
    return sum(float(options.freed[number]) for options, number in zip(layers, mix.chosen, strict=True))


def least_room(layers: Sequence[Options], in_flight: int) -> float:
    """The least `room` with which some mix fits.

    Of all mixes under a peak, the one that frees most needs least; so it is enough to try the peaks at which more can
    be freed.
    """
    found = float("inf")
    peak: float | None = _lowest_peak(layers)
    while peak is not None:
        freed, following = _greedy(layers, peak)
        if freed is not None:
            found = min(found, peak - (in_flight - 1) * freed)
            if in_flight == 1:
                break
        peak = following
    return found


def _greedy(layers: Sequence[Options], peak: float) -> tuple[float | None, float | None]:
    """The most bytes that a mix within this peak frees (None if there is none), and the next peak that allows more."""
    freed, higher = 0.0, []
    for options in layers:
        legal = options.peak <= peak + freed + ROUNDING
        most = float(options.freed[legal].max()) if legal.any() else -1.0
        better = options.peak[options.freed > most]
        if len(better):
            higher.append(float(better.min()) - freed)
        if most < 0.0:
            return None, min(higher)
        freed += most
    return freed, min(higher, default=None)


def _lowest_peak(layers: Sequence[Options]) -> float:
    """No mix has a lower one: the highest of the layers' least peaks, were all before it free to drop all they can."""
    found, freed = 0.0, 0.0
    for options in layers:
        found = max(found, float(options.peak.min()) - freed)
        freed += float(options.freed.max())
    return found


class _Search:
    """The passes over one sequence of layers. `others`: further microbatches in flight."""

    def __init__(self, layers: Sequence[Options], room: float, others: int) -> None:
        self.layers, self.room, self.others = layers, room, others
        self.can_free = [0.0]  # by the layers from number n on
        self.needed = [-float("inf")]  # the least need of those, less what is freed before them
        for options in reversed(layers):
            most = float(options.freed.max())
            self.needed.append(max(float(options.peak.min()), self.needed[-1] - most))
            self.can_free.append(self.can_free[-1] + most)
        self.can_free.reverse()
        self.needed.reverse()

    def run(self, states: int, curves: Sequence[tuple[Vector, Vector]] | None, limit: float) -> Mix | None:
        """Layer after layer, keeping at most `states`; those that cannot end at `limit` or below are cut."""
        freed, cost, need = np.zeros(1), np.zeros(1), np.full(1, -np.inf)
        steps: list[tuple[Ints, Ints]] = []
        exact = True
        for number, options in enumerate(self.layers, start=1):
            need = np.maximum(need[:, None], options.peak - freed[:, None]).ravel()
            freed, cost = (freed[:, None] + options.freed).ravel(), (cost[:, None] + options.cost).ravel()
            floor = np.maximum(self.needed[number] - freed, self.room + self.others * freed)
            need = np.maximum(need, floor)
            able = need <= self.room + self.others * (freed + self.can_free[number]) + ROUNDING
            if curves is not None:
                able &= cost + self._rest(curves[number], freed, need) <= limit
            kept = self._kept(np.flatnonzero(able), freed, cost, need)
            if not len(kept):
                return None
            if len(kept) > states:
                exact = False
                kept = _thin(kept, freed, states)
            steps.append(np.divmod(kept, len(options.cost)))
            freed, cost, need = freed[kept], cost[kept], need[kept]
        state = int(np.argmin(cost))
        chosen = tuple(trace(steps, state))
        return Mix(chosen=chosen, cost=float(cost[state]), peak=peak_of(self.layers, chosen), exact=exact)

    def _rest(self, curve: tuple[Vector, Vector], freed: Vector, need: Vector) -> Vector:
        """What freeing costs at least that must follow for the need to be met."""
        short = np.maximum(0.0, (need - self.room) / self.others - freed)
        found: Vector = np.interp(short, *curve) * (1 - 1e-9)
        return found

    def _kept(self, able: Ints, freed: Vector, cost: Vector, need: Vector) -> Ints:
        """Of these states, by rising cost, those that no cheaper one with as low a need beats in bytes freed."""
        if not len(able):
            return able
        order = able[np.lexsort((need[able], -freed[able], cost[able]))]
        x, y = freed[order], need[order]
        low, high = float(y.min()), float(y.max())
        width = (high - low) / BUCKETS
        bucket = np.minimum((y - low) / width, BUCKETS - 1).astype(np.int64) if width > 0 else np.zeros(len(y), int)
        kept = np.zeros(len(order), dtype=bool)
        for number in np.unique(bucket).tolist():
            best = np.maximum.accumulate(np.where(bucket <= number, x, -1.0))
            kept |= (bucket == number) & (x > np.concatenate([[-1.0], best[:-1]]))
        found: Ints = order[kept]
        return found


def _thin(kept: Ints, freed: Vector, states: int) -> Ints:
    """So many of them, evenly by cost, and the one that frees most."""
    chosen = np.linspace(0, len(kept) - 1, states).round().astype(np.int64)
    return kept[np.unique(np.append(chosen, np.argmax(freed[kept])))]


def _curve(layers: Sequence[Options]) -> tuple[Vector, Vector]:
    """The least cost of freeing so many bytes, were policies divisible: points of bytes and of cost."""
    hulls = [hull(options) for options in layers] or [(np.zeros(0), np.zeros(0))]
    freed = np.concatenate([steps[0] for steps in hulls])
    cost = np.concatenate([steps[1] for steps in hulls])
    order = np.argsort(cost / freed, kind="stable")
    return np.append(0.0, freed[order].cumsum()), np.append(0.0, cost[order].cumsum())
