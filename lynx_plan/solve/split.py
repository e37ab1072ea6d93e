"""Splits of layers into pipeline stages: evenly, by greedy shifts, as given; `split_search.py` finds the best.

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
    costs = Memo(stage_ns)
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


class Memo:
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
