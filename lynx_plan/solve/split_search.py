"""The best split of layers into pipeline stages, by dynamic programming over layers and stages.

First a bound: the least time within which stages that each take as many layers as they can take them all. Under a
limit every border between stages has an earliest and a latest place; the exact search looks between those only. What
it finds is the best of all; where it finds nothing (a stage may have to be empty), the limit rises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from lynx_plan.solve.split import Memo, Split, StageTime, check_counts, evaluate

FloorTime = Callable[[int, int], float]
NO_LIMIT = float("inf")
NEAR = 1e-3  # share to which a bound is found
FIRST_GROWTH = (1.02, 1.1, 1.3, 1.8, 3.0, 6.0)  # bounds tried at first, in multiples of the floors' own
GROWTH = (1.0, 1.01, 1.05, 1.2, 1.6, 3.0)  # limits searched under, in multiples of the bound


def split(
    stage_ns: StageTime,
    *,
    layers: int,
    stages: int,
    floor_ns: FloorTime | None = None,
    rising: bool = True,
    known: Sequence[Sequence[int]] = (),
) -> Split | None:
    """The split whose slowest stage is fastest; of those the one of least total time, then of least sum of squares.

    None if no split fits. Exact where more layers never take a stage less time and never fit better (`rising`, else
    no border is ruled out beforehand); at most layers^2 x stages calls of `stage_ns`, each once. `floor_ns(first,
    last)`: a time that no stage of these layers can beat, never less for more layers: spares calls. `known`: bounds
    of splits that the answer must not be slower than, whatever the costs.
    """
    check_counts(layers, stages)
    costs = Memo(stage_ns)
    given = [one for bounds in known if (one := evaluate(costs, bounds)) is not None]
    best = min(given, key=lambda one: one.slowest_ns, default=None)
    reach = _Reach(costs, layers, stages, floor_ns) if rising else None
    for rising_limit in reach.limits() if reach is not None else (NO_LIMIT,):
        limit = rising_limit if best is None else min(rising_limit, best.slowest_ns)
        borders = reach.windows(limit) if reach is not None else _anywhere(layers, stages)
        found = None if borders is None else _Table(costs, borders, floor_ns, limit).best()
        if found is not None:
            return _evenest(costs, reach, floor_ns, found)
        if best is not None and limit == best.slowest_ns:
            break
    return best


def _evenest(costs: StageTime, reach: _Reach | None, floor_ns: FloorTime | None, found: Split) -> Split:
    """Of the splits that are as fast as this one, the one of least total time."""
    borders = _anywhere(found.bounds[-1], len(found.stage_ns)) if reach is None else reach.windows(found.slowest_ns)
    bounds = None if borders is None else _Table(costs, borders, floor_ns, found.slowest_ns).evenest()
    return (evaluate(costs, bounds) if bounds is not None else None) or found


def _anywhere(layers: int, stages: int) -> list[range]:
    """For each border, the ends included, where it may be: every stage has a layer."""
    inner = [range(border, layers - (stages - border) + 1) for border in range(1, stages)]
    return [range(1), *inner, range(layers, layers + 1)]


class _Reach:
    """How far stages get that take as many layers as they can within a time, from the first layer or from the last."""

    def __init__(self, costs: StageTime, layers: int, stages: int, floor_ns: FloorTime | None) -> None:
        self.costs, self.layers, self.stages, self.floor_ns = costs, layers, stages, floor_ns
        self.borders = _anywhere(layers, stages)

    def limits(self) -> Iterator[float]:
        """Rising times of the slowest stage to search under, from about the least one that could do; then none."""
        least = self._least()
        if least is not None:
            yield from (least * growth for growth in GROWTH)
            yield NO_LIMIT

    def windows(self, limit: float) -> list[range] | None:
        """For each border the places that leave enough to both sides within `limit`; None if there are none."""
        latest, earliest = self._forward(limit), self._backward(limit)
        if latest is None or earliest is None:
            return None
        found = []
        for low, high, possible in zip(earliest, latest, self.borders, strict=True):
            found.append(range(max(low, possible[0]), min(high, possible[-1]) + 1))
        return found if all(found) else None

    def _least(self) -> float | None:
        """About the least time within which the layers are taken; None if they are not whatever the time."""
        floor = self._least_floor()
        tried = [floor * growth for growth in FIRST_GROWTH] if floor > 0 else []
        low = floor
        for high in (*tried, NO_LIMIT):
            if self._forward(high) is not None:
                break
            low = high
        else:
            return None
        if high == NO_LIMIT:
            high = self._longest()
        return self._between(low, high)

    def _between(self, low: float, high: float) -> float:
        """Halve what is between a time that does not do and one that does."""
        while high - low > NEAR * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._forward(middle) is not None else (middle, high)
        return high

    def _longest(self) -> float:
        """The time of the slowest of stages that take as many layers as they can."""
        bounds = self._forward(NO_LIMIT) or []
        times = [self.costs(a, b, stage) for stage, (a, b) in enumerate(pairwise(bounds)) if a < b]
        return max((time for time in times if time is not None), default=0.0)

    def _least_floor(self) -> float:
        """About the least time of the slowest stage if each took its floor."""
        if self.floor_ns is None:
            return 0.0
        floors = _Reach(_of_ranges(self.floor_ns), self.layers, self.stages, None)
        return floors._between(0.0, self.floor_ns(0, self.layers))

    def _fits(self, first: int, last: int, stage: int, limit: float) -> bool:
        if self.floor_ns is not None and self.floor_ns(first, last) > limit:
            return False
        time = self.costs(first, last, stage)
        return time is not None and time <= limit

    def _forward(self, limit: float) -> list[int] | None:
        """The latest place of each border; stages that can take none where they would begin stay empty."""
        found = [0]
        for stage in range(self.stages):
            first, fits = found[-1], partial(self._takes, found[-1], stage, limit)
            found.append(first + _most(self.layers - first, fits))
        return found if found[-1] == self.layers else None

    def _backward(self, limit: float) -> list[int] | None:
        """The earliest place of each border."""
        found = [self.layers]
        for stage in reversed(range(self.stages)):
            last, fits = found[-1], partial(self._took, found[-1], stage, limit)
            found.append(last - _most(last, fits))
        return found[::-1] if found[-1] == 0 else None

    def _takes(self, first: int, stage: int, limit: float, count: int) -> bool:
        return self._fits(first, first + count, stage, limit)

    def _took(self, last: int, stage: int, limit: float, count: int) -> bool:
        return self._fits(last - count, last, stage, limit)


def _most(count: int, fits: Callable[[int], bool]) -> int:
    """The most of 1 to `count` that fit, 0 if none does: as many steps as the answer has digits."""
    low, step = 0, 1
    while low < count and fits(min(count, low + step)):
        low = min(count, low + step)
        step *= 2
    high = min(count + 1, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _of_ranges(floor_ns: FloorTime) -> StageTime:
    """A floor as a cost, whatever the stage."""

    def stage_ns(first: int, last: int, stage: int) -> float | None:
        return floor_ns(first, last)

    return stage_ns


class _Table:
    """Dynamic programming over the places that each border may have; stages are within the limit."""

    def __init__(self, costs: StageTime, borders: Sequence[range], floor_ns: FloorTime | None, limit: float) -> None:
        self.costs, self.borders, self.floor_ns, self.limit = costs, borders, floor_ns, limit

    def best(self) -> Split | None:
        """A split whose slowest stage is fastest; None if there is none within the limit."""
        rows: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]  # per stage: its end -> slowest so far, its first
        for stage, (_, ends) in enumerate(pairwise(self.borders)):
            least = {last: self._least(rows[-1], last, stage) for last in ends}
            rows.append({last: entry for last, entry in least.items() if entry[0] <= self.limit and entry[1] >= 0})
        bounds = _trace(rows)
        return None if bounds is None else evaluate(self.costs, bounds)

    def _least(self, before: dict[int, tuple[float, int]], last: int, stage: int) -> tuple[float, int]:
        """The least slowest time of stages up to this one if it ends with layer last - 1, and where it begins then."""
        best, begin = NO_LIMIT, -1
        for first in reversed(self.borders[stage]):
            if first >= last or first not in before or before[first][0] >= best:
                continue
            floor = self.floor_ns(first, last) if self.floor_ns is not None else 0.0
            if floor >= best or floor > self.limit:
                break
            time = self.costs(first, last, stage)
            if time is not None and max(before[first][0], time) < best:
                best, begin = max(before[first][0], time), first
        return best, begin

    def evenest(self) -> tuple[int, ...] | None:
        """Of the splits whose stages are all within the limit: least total time, then sum of squares, then bounds."""
        rows: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, 0.0, 0)}]
        for stage, (_, ends) in enumerate(pairwise(self.borders)):
            ways = {last: self._sums(rows[-1], last, stage) for last in ends}
            rows.append({last: min(found) for last, found in ways.items() if found})
        return _trace(rows)

    def _sums(self, row: dict[int, tuple[float, float, int]], last: int, stage: int) -> list[tuple[float, float, int]]:
        """Total time, sum of squares and first layer of each way in which this stage may end with layer last - 1."""
        found = []
        for first in reversed(self.borders[stage]):
            if first >= last or first not in row:
                continue
            if self.floor_ns is not None and self.floor_ns(first, last) > self.limit:
                break
            time = self.costs(first, last, stage)
            if time is not None and time <= self.limit:
                total, squares, _ = row[first]
                found.append((total + time, squares + time * time, first))
        return found


def _trace(rows: Sequence[Mapping[int, tuple[float | int, ...]]]) -> tuple[int, ...] | None:
    """The bounds behind the only entry of the last row; entries end with the first layer of their stage."""
    if not rows[-1]:
        return None
    (last,) = rows[-1]
    bounds = [last]
    for row in reversed(rows[1:]):
        bounds.append(int(row[bounds[-1]][-1]))
    return tuple(reversed(bounds))
