"""The mix of policies over a stage's layers where several microbatches are in flight.

A mix that frees F bytes of a microbatch frees them of each one in flight: its peak, of the one at work, may then be
`room + (in_flight - 1) F`. For a given F that is a mix under a budget with one more layer at its end, for which F must
have been freed; from the least possible F on, a few are tried.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lynx_plan.solve.mix import Mix, Options, best_mix, peak_of

PROBES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # shares of what can be freed beyond the least, until one is no better
SCAN = tuple(step / 16 for step in range(17))
NEAR = 1e-4  # share of what can be freed to which the least is found


def mix_in_flight(layers: Sequence[Options], *, room: float, in_flight: int, states: int | None = None) -> Mix | None:
    """The cheapest mix that fits, about; None without one.

    `room`: bytes for the peak of one microbatch if none of the others frees anything: the budget less static memory
    and less (in_flight - 1) times what a microbatch saves. `states`: as in `best_mix`. The mix's `peak` is that of one
    microbatch.
    """
    if in_flight == 1 or max((float(options.peak[0]) for options in layers), default=0.0) <= room:
        return best_mix(layers, room, states)
    others, most = in_flight - 1, _most(layers)
    least = _least_freed(layers, room, others, most)
    if least is None:
        return None
    best: Mix | None = None
    for share in PROBES:
        mix = _freeing(layers, room, others, least + share * (most - least), states)
        if mix is not None and (best is None or mix.cost < best.cost):
            best = mix
        elif best is not None:
            break
    return best


def freed_bytes(layers: Sequence[Options], mix: Mix) -> float:
    """What a mix frees of each microbatch."""
    return sum(float(options.freed[number]) for options, number in zip(layers, mix.chosen, strict=True))


def least_room(layers: Sequence[Options], in_flight: int) -> float:
    """The least `room` with which some mix fits."""
    most = _most(layers)
    high = max((float(options.peak[0]) for options in layers), default=0.0)
    low = -in_flight * most
    while high - low > max(1.0, 1e-6 * abs(high)):
        middle = (low + high) / 2
        fits = can_free(layers, middle) if in_flight == 1 else _least_freed(layers, middle, in_flight - 1, most)
        low, high = (low, middle) if fits is not None else (middle, high)
    return high


def can_free(layers: Sequence[Options], budget: float) -> float | None:
    """The most bytes that a mix within this budget frees; None if its peak is above it."""
    freed = 0.0
    for options in layers:
        legal = options.freed[options.peak <= budget + freed]
        if not len(legal):
            return None
        freed += float(legal.max())
    return freed


def _most(layers: Sequence[Options]) -> float:
    return sum(float(options.freed.max()) for options in layers)


def _freeing(layers: Sequence[Options], room: float, others: int, freed: float, states: int | None) -> Mix | None:
    """The cheapest mix that frees so much at least and whose peak is within what that leaves."""
    budget = room + others * freed
    enough = Options(cost=np.zeros(1), freed=np.zeros(1), peak=np.array([budget + freed]))
    mix = best_mix([*layers, enough], budget, states)
    if mix is None:
        return None
    chosen = mix.chosen[:-1]
    return Mix(chosen=chosen, cost=mix.cost, peak=peak_of(layers, chosen), exact=mix.exact)


def _least_freed(layers: Sequence[Options], room: float, others: int, most: float) -> float | None:
    """About the fewest bytes that a mix may free and keep its peak within what that leaves; None without one."""
    low, high = 0.0, most
    if can_free(layers, room) is not None:
        high = 0.0
    elif can_free(layers, room + others * most) is None:
        return None
    while high - low > NEAR * most:
        middle = (low + high) / 2
        low, high = (low, middle) if can_free(layers, room + others * middle) is not None else (middle, high)
    for share in SCAN:
        freed = high + share * (most - high)
        able = can_free(layers, room + others * freed)
        if able is not None and able >= freed:
            return freed
    return None
