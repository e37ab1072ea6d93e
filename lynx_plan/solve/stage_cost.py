"""The fastest time of a range of layers as a pipeline stage within its memory, from HEU's frontiers of those layers.

Memory of a stage = static + (in-flight - 1) x (saved - freed) + the peak of one microbatch, which counts from what
other layers leave in memory in the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import Infeasible
from lynx_plan.solve.heu_stage import Stage, stage_of
from lynx_plan.solve.in_flight import least_room, mix_in_flight
from lynx_plan.solve.layer_costs import LayerCosts
from lynx_plan.solve.mix import Options
from lynx_plan.solve.split import Split, even, greedy
from lynx_plan.solve.split_search import split
from lynx_plan.units import format_bytes

STATES = 512  # of a mix: enough for costs to be within a small share of the best
BUDGET_STEP = 1e-3  # share to which the smallest budget is found

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Layers as a stage: what tells their frontiers apart, and the bytes at the level that peaks count from."""

    key: Key
    base_bytes: int
    static_bytes: int
    saved_bytes: int


class StageCosts:
    """Costs of every range of layers of one graph; equal ranges are worked out once."""

    def __init__(self, index: GraphIndex, *, windows_open: bool = True) -> None:
        self.layer = LayerCosts(index)
        self.stage: Stage = stage_of(self.layer.analysis, windows_open=windows_open)
        self.starts = self._piece_starts()
        self.kinds, self.forms = self._kinds()
        self._options: dict[Key, list[Options]] = {}
        self._ranges: dict[tuple[int, int], _Range] = {}
        self._costs: dict[tuple[Key, int, int], float | None] = {}
        self._least: dict[tuple[Key, int], float] = {}

    @property
    def layers(self) -> int:
        return self.layer.layers

    def floor_ns(self, first: int, last: int) -> int:
        """What no plan of these layers can beat: their time if nothing is recomputed."""
        return self.layer.plain_ns(first, last)

    def time_ns(self, first: int, last: int, *, budget_bytes: int, in_flight: int) -> float | None:
        """The fastest time of one microbatch; None if the layers do not fit, whatever is recomputed."""
        one = self._range(first, last)
        room = budget_bytes - one.static_bytes - (in_flight - 1) * one.saved_bytes - one.base_bytes
        key = (one.key, room, in_flight)
        if key not in self._costs:
            mix = mix_in_flight(self._options_of(one.key), room=room, in_flight=in_flight, states=STATES)
            self._costs[key] = None if mix is None else mix.cost
        exposed = self._costs[key]
        return None if exposed is None else self.layer.plain_ns(first, last) + exposed

    def least_bytes(self, first: int, last: int, *, in_flight: int) -> float:
        """The smallest budget within which these layers fit."""
        one = self._range(first, last)
        key = (one.key, in_flight)
        if key not in self._least:
            self._least[key] = least_room(self._options_of(one.key), in_flight)
        return self._least[key] + one.static_bytes + (in_flight - 1) * one.saved_bytes + one.base_bytes

    def plain_bytes(self, first: int, last: int, *, in_flight: int) -> float:
        """Bytes at the peak if nothing is recomputed."""
        one = self._range(first, last)
        peak = max((float(options.peak[0]) for options in self._options_of(one.key)), default=0.0)
        return one.static_bytes + (in_flight - 1) * one.saved_bytes + one.base_bytes + peak

    def _piece_starts(self) -> list[int]:
        """Per layer of the graph, its first piece in the analysed one (`pieces.py`); and the end."""
        pieces, starts, piece = self.stage.graph.layers, [], 0
        for layer in self.layer.index.graph.layers:
            starts.append(piece)
            end = len(layer.ops) - len(pieces[piece].ops)
            piece += 1
            while end > 0:
                end -= len(pieces[piece].ops)
                piece += 1
        return [*starts, piece]

    def _kinds(self) -> tuple[list[int], list[tuple[Options, int]]]:
        """Per piece the number of its kind; per kind its frontier with peaks from the piece's level, and the step to
        the next piece's level."""
        numbers: dict[tuple[int, float, int], int] = {}
        variants: dict[int, int] = {}
        kinds, forms = [], []
        level = [*self.stage.level, 0]
        for piece, options in enumerate(self.stage.options):
            variant = variants.setdefault(id(self.stage.variants[piece]), len(variants))
            peak = options.peak - level[piece]
            kind = (variant, float(peak[0]), level[piece + 1] - level[piece])
            if kind not in numbers:
                numbers[kind] = len(numbers)
                forms.append((Options(cost=options.cost, freed=options.freed, peak=peak), kind[2]))
            kinds.append(numbers[kind])
        return kinds, forms

    def _options_of(self, key: Key) -> list[Options]:
        """The frontiers of a sequence of kinds, peaks counted from the first one's level."""
        if key not in self._options:
            found, level = [], 0
            for kind in key:
                options, step = self.forms[kind]
                found.append(Options(cost=options.cost, freed=options.freed, peak=options.peak + level))
                level += step
            self._options[key] = found
        return self._options[key]

    def _range(self, first: int, last: int) -> _Range:
        if (first, last) not in self._ranges:
            start = self.starts[first]
            self._ranges[first, last] = _Range(
                key=tuple(self.kinds[start : self.starts[last]]),
                base_bytes=self.stage.level[start] - self.layer.foreign_bytes(first, last),
                static_bytes=self.layer.static_bytes(first, last),
                saved_bytes=self.layer.saved_bytes(first, last),
            )
        return self._ranges[first, last]


def in_flight_1f1b(stages: int, micro_batches: int) -> tuple[int, ...]:
    """How many microbatches' saved tensors each stage holds at most, in plain 1F1B."""
    return tuple(min(micro_batches, stages - stage) for stage in range(stages))


def auto_split(costs: StageCosts, *, budgets: Sequence[int], in_flight: Sequence[int]) -> Split:
    """The split whose slowest stage is fastest, each within its budget (bytes, static included).

    Raises Infeasible, with the smallest budget for which there is a split, where none fits.
    """
    stages = len(budgets)

    def stage_ns(first: int, last: int, stage: int) -> float | None:
        return costs.time_ns(first, last, budget_bytes=budgets[stage], in_flight=in_flight[stage])

    before, after = costs.layer.ends
    start = even(costs.layers, stages, before=before, after=after)
    known = (start, greedy(stage_ns, start))
    found = split(stage_ns, layers=costs.layers, stages=stages, floor_ns=costs.floor_ns, known=known)
    if found is None:
        least = least_budget(costs, in_flight)
        raise Infeasible(
            f"no split of {costs.layers} layers into {stages} stages fits: every stage needs its budget, and the "
            f"smallest for all is {format_bytes(least)}",
            minimum_budget_bytes=least,
            where="--budget",
            hint=f"a larger budget (at least {format_bytes(least)}), more stages, or fewer microbatches in flight",
        )
    return found


def least_budget(costs: StageCosts, in_flight: Sequence[int]) -> int:
    """About the smallest budget for all stages within which some split fits, and one that does."""
    bounds = even(costs.layers, len(in_flight))
    needs = [costs.least_bytes(a, b, in_flight=f) for (a, b), f in zip(pairwise(bounds), in_flight, strict=True)]
    low, high = 0.0, max(needs)
    while high - low > BUDGET_STEP * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _reaches(costs, in_flight, middle) else (middle, high)
    return ceil(high)


def _reaches(costs: StageCosts, in_flight: Sequence[int], budget: float) -> bool:
    """Whether stages that take as many layers as they can hold take them all: fewer layers never need more."""
    first = 0
    for stage, held in enumerate(in_flight):
        left = len(in_flight) - 1 - stage
        last = first
        while last < costs.layers - left and costs.least_bytes(first, last + 1, in_flight=held) <= budget:
            last += 1
        if last == first:
            return False
        first = last
    return first == costs.layers
