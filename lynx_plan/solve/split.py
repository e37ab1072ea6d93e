"""The split of layers into pipeline stages: exact by dynamic programming, evenly, by greedy shifts, or as given.

Costs are abstract: `stage_ns(first, last, stage)` is the time of layers first to last - 1 as that stage, None where
they do not fit its memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from lynx_plan.errors import LynxError

StageTime = Callable[[int, int, int], float | None]
FloorTime = Callable[[int, int], float]
NO_LIMIT = float("inf")
GROWTH = (1.02, 1.1, 1.25, 1.6, 2.5)  # slowest stages tried, in multiples of the least that floors allow; then any
WHERE = "--split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Stage k holds layers bounds[k] to bounds[k + 1] - 1 and takes stage_ns[k]."""

    bounds: tuple[int, ...]
    stage_ns: tuple[float, ...]

    @property
    def slowest_ns(self) -> float:
        return max(self.stage_ns)

    @property
    def widths(self) -> tuple[int, ...]:
        """Layers per stage."""
        return tuple(b - a for a, b in pairwise(self.bounds))


def split(stage_ns: StageTime, *, layers: int, stages: int, floor_ns: FloorTime | None = None) -> Split | None:
    """The split whose slowest stage is fastest; of those the one of least total time, then of least sum of squares.

    None if no split fits. `floor_ns(first, last)`: a time that no stage of these layers can beat, never less for
    more layers; then ranges whose floor is above a limit are not looked at, and a split found under a limit is the
    best of all. Exact for any costs that `stage_ns` gives; at most layers^2 x stages calls of it, each once.
    """
    check_counts(layers, stages)
    costs = _Memo(stage_ns)
    for limit in _limits(layers, stages, floor_ns):
        table = _Table(costs, layers, stages, floor_ns, limit)
        slowest = table.slowest()
        if slowest is not None:
            return evaluate(costs, _Table(costs, layers, stages, floor_ns, slowest).evenest())
    return None


def evaluate(stage_ns: StageTime, bounds: Sequence[int]) -> Split | None:
    """What a split costs; None if it does not fit."""
    times = [stage_ns(first, last, stage) for stage, (first, last) in enumerate(pairwise(bounds))]
    known = [time for time in times if time is not None]
    return Split(bounds=tuple(bounds), stage_ns=tuple(known)) if len(known) == len(times) else None


def even(layers: int, stages: int, *, before: int = 0, after: int = 0) -> tuple[int, ...]:
    """Bounds with as many layers in each stage; the first stages take one more each where it does not come out even.

    The first `before` and the last `after` layers (embedding, head) are not counted: they go with their neighbours.
    """
    counted = layers - before - after
    if counted < stages:
        before = after = 0
        counted = layers
    check_counts(layers, stages)
    width, more = divmod(counted, stages)
    widths = [width + (stage < more) for stage in range(stages)]
    return _with_ends(widths, before, after)


def greedy(stage_ns: StageTime, bounds: Sequence[int]) -> tuple[int, ...]:
    """The paper's shifts: from `bounds`, move a layer from the slowest stage to a neighbour while that helps.

    A stage that does not fit is slower than any that does; of stages alike, the first counts.
    """
    costs = _Memo(stage_ns)
    best, rank = tuple(bounds), _rank(costs, bounds)
    while True:
        moved = [(_rank(costs, one), one) for one in _shifts(best, rank[2])]
        if not moved or min(moved)[0][:2] >= rank[:2]:
            return best
        rank, best = min(moved)


def parse_split(text: str, layers: int, stages: int, *, before: int = 0, after: int = 0) -> tuple[int, ...]:
    """The bounds that a list of layers per stage gives, such as "12,12,11,13".

    It counts all layers, or all but the first `before` and the last `after`, which then go with their neighbours.
    Raises LynxError where it does not come out.
    """
    parts = text.split(",")
    if any(not re.fullmatch(r"\s*\d+\s*", part) for part in parts):
        raise LynxError(f"'{text}' is not a list of layers per stage", where=WHERE, hint="such as 12,12,11,13")
    widths = [int(part) for part in parts]
    if len(widths) != stages:
        raise LynxError(f"'{text}' has {len(widths)} stages, --pp {stages}", where=WHERE, hint="one number per stage")
    if 0 in widths:
        hint = "every stage needs a layer; with fewer stages, give a smaller --pp"
        raise LynxError(f"'{text}' leaves stage {widths.index(0)} without layers", where=WHERE, hint=hint)
    total = sum(widths)
    if total == layers:
        return (0, *accumulate(widths))
    if total == layers - before - after:
        return _with_ends(widths, before, after)
    counts = f"{layers} layers" if before + after == 0 else f"{layers} layers, {layers - before - after} without ends"
    raise LynxError(
        f"'{text}' adds up to {total}, but the model has {counts}",
        where=WHERE,
        hint="lynx inspect lists the layers; --split auto chooses",
    )


def check_counts(layers: int, stages: int) -> None:
    """Raises LynxError unless every stage can have a layer."""
    if stages < 1 or stages > layers:
        hint = f"at most {layers} stages: --pp {layers} or less"
        raise LynxError(f"{layers} layers cannot be split into {stages} stages", where="--pp", hint=hint)


def _with_ends(widths: Sequence[int], before: int, after: int) -> tuple[int, ...]:
    widths = [*widths]
    widths[0] += before
    widths[-1] += after
    return (0, *accumulate(widths))


class _Memo:
    """A cost function that is asked once for each range and stage."""

    def __init__(self, stage_ns: StageTime) -> None:
        self.stage_ns = stage_ns
        self.known: dict[tuple[int, int, int], float | None] = {}

    def __call__(self, first: int, last: int, stage: int) -> float | None:
        key = (first, last, stage)
        if key not in self.known:
            self.known[key] = self.stage_ns(first, last, stage)
        return self.known[key]


def _rank(costs: StageTime, bounds: Sequence[int]) -> tuple[int, float, int]:
    """Stages that do not fit, time of the slowest of the others, number of the slowest of all."""
    times = [costs(first, last, stage) for stage, (first, last) in enumerate(pairwise(bounds))]
    wrong = [stage for stage, time in enumerate(times) if time is None]
    known = [time for time in times if time is not None]
    slowest = max(known, default=0.0)
    return len(wrong), slowest, wrong[0] if wrong else times.index(slowest)


def _shifts(bounds: tuple[int, ...], stage: int) -> list[tuple[int, ...]]:
    """The bounds after moving the stage's first layer to the stage before, or its last to the one after."""
    if bounds[stage + 1] - bounds[stage] < 2:
        return []
    found = []
    for border, step in ((stage, 1), (stage + 1, -1)):
        if 0 < border < len(bounds) - 1:
            moved = [*bounds]
            moved[border] += step
            found.append(tuple(moved))
    return found


def _limits(layers: int, stages: int, floor_ns: FloorTime | None) -> list[float]:
    """Rising limits for the slowest stage, the last of them none at all."""
    if floor_ns is None:
        return [NO_LIMIT]
    floors: StageTime = lambda first, last, _: floor_ns(first, last)  # noqa: E731
    least = _Table(floors, layers, stages, floor_ns, NO_LIMIT).slowest()
    return [NO_LIMIT] if not least else [*(least * growth for growth in GROWTH), NO_LIMIT]


class _Table:
    """Dynamic programming over prefixes of layers, among ranges whose floor is within the limit."""

    def __init__(self, costs: StageTime, layers: int, stages: int, floor_ns: FloorTime | None, limit: float) -> None:
        self.costs, self.layers, self.stages, self.floor_ns, self.limit = costs, layers, stages, floor_ns, limit
        self.firsts = self._firsts()
        self.needed = self._needed()

    def _firsts(self) -> list[int]:
        """For each end of a range the first layer it may begin with."""
        if self.floor_ns is None or self.limit == NO_LIMIT:
            return [0] * (self.layers + 1)
        found, first = [], 0
        for last in range(self.layers + 1):
            while first < last and self.floor_ns(first, last) > self.limit:
                first += 1
            found.append(first)
        return found

    def _needed(self) -> list[int]:
        """For each layer the fewest stages for it and all after it; too many where one is over the limit by itself."""
        furthest = [0] * (self.layers + 1)
        for last in range(self.layers + 1):
            for first in range(self.firsts[last], last):
                furthest[first] = last
        found = [0] * (self.layers + 1)
        for first in reversed(range(self.layers)):
            found[first] = 1 + (found[furthest[first]] if furthest[first] > first else self.stages)
        return found

    def _ends(self, stage: int) -> range:
        """Where a stage may end, so that every stage after it has a layer."""
        last = self.stages - 1
        return (
            range(stage + 1, self.layers - (last - stage) + 1) if stage < last else range(self.layers, self.layers + 1)
        )

    def slowest(self) -> float | None:
        """The least time of the slowest stage, over all splits; None if there is none under the limit."""
        before: dict[int, float] = {0: 0.0}  # number of layers in the stages so far -> time of their slowest
        for stage in range(self.stages):
            after: dict[int, float] = {}
            for last in self._ends(stage):
                if self.needed[last] <= self.stages - 1 - stage:
                    best = self._least(before, last, stage)
                    if best <= self.limit and best != NO_LIMIT:
                        after[last] = best
            before = after
        return before.get(self.layers)

    def _least(self, before: dict[int, float], last: int, stage: int) -> float:
        """The least slowest time of stages up to this one, if it ends with layer last - 1."""
        best = NO_LIMIT
        for first in range(last - 1, self.firsts[last] - 1, -1):
            known = before.get(first, NO_LIMIT)
            if known >= best or (self.floor_ns is not None and self.floor_ns(first, last) >= best):
                continue
            time = self.costs(first, last, stage)
            if time is not None:
                best = min(best, max(known, time))
        return best

    def evenest(self) -> tuple[int, ...]:
        """Of the splits whose stages are all within the limit: least total time, then sum of squares, then bounds."""
        rows: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, 0.0, 0)}]
        for stage in range(self.stages):
            row: dict[int, tuple[float, float, int]] = {}
            for last in self._ends(stage):
                if self.needed[last] > self.stages - 1 - stage:
                    continue
                found = [
                    (total + time, squares + time * time, first)
                    for first, (total, squares, _) in rows[-1].items()
                    if self.firsts[last] <= first < last
                    and (time := self.costs(first, last, stage)) is not None
                    and time <= self.limit
                ]
                if found:
                    row[last] = min(found)
            rows.append(row)
        bounds = [self.layers]
        for row in reversed(rows[1:]):
            bounds.append(row[bounds[-1]][2])
        return tuple(reversed(bounds))
