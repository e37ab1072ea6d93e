"""The split of layers into stages: exact against brute force, never worse than even or greedy, lists as given."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from lynx_plan.errors import LynxError
from lynx_plan.solve.split import evaluate, even, greedy, parse_split
from lynx_plan.solve.split_search import split

LAYERS, STAGES = 9, 4


class Costs:
    """Random costs of ranges: layers' times, more on early stages, a limit of layers per stage; counts calls."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.layers = rng.randrange(2, LAYERS)
        self.stages = rng.randrange(1, min(STAGES, self.layers) + 1)
        self.times = [rng.randrange(1, 20) for _ in range(self.layers)]
        self.weights = [rng.randrange(1, 9) for _ in range(self.layers)]
        self.room = [rng.randrange(2, 15) for _ in range(self.stages)]
        self.extra = [rng.randrange(4) for _ in range(self.stages)]
        self.calls: list[tuple[int, int, int]] = []

    def floor(self, first: int, last: int) -> float:
        return float(sum(self.times[first:last]))

    def __call__(self, first: int, last: int, stage: int) -> float | None:
        self.calls.append((first, last, stage))
        weight = sum(self.weights[first:last])
        if weight > 2 * self.room[stage]:
            return None
        return self.floor(first, last) + self.extra[stage] * max(0, weight - self.room[stage])

    def brute_force(self) -> tuple[float, float, float] | None:
        """Of all splits the least slowest time, then the least total, then the least sum of squares."""
        found = []
        for inner in combinations(range(1, self.layers), self.stages - 1):
            times = [self(a, b, stage) for stage, (a, b) in enumerate(pairwise((0, *inner, self.layers)))]
            known = [time for time in times if time is not None]
            if len(known) == len(times):
                found.append((max(known), sum(known), sum(time * time for time in known)))
        return min(found, default=None)


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("floors", [False, True])
@pytest.mark.parametrize("rising", [False, True])
def test_equals_brute_force(seed: int, floors: bool, rising: bool) -> None:
    costs = Costs(seed)
    floor = costs.floor if floors else None
    found = split(costs, layers=costs.layers, stages=costs.stages, floor_ns=floor, rising=rising)
    assert len(costs.calls) == len(set(costs.calls))
    best = costs.brute_force()
    if found is None:
        assert best is None
    else:
        assert (found.slowest_ns, sum(found.stage_ns), sum(ns * ns for ns in found.stage_ns)) == best
        assert found == evaluate(costs, found.bounds)


@pytest.mark.parametrize("seed", range(100))
def test_never_worse_than_even_or_greedy(seed: int) -> None:
    costs = Costs(seed)
    found = split(costs, layers=costs.layers, stages=costs.stages, floor_ns=costs.floor)
    start = even(costs.layers, costs.stages)
    for bounds in (start, greedy(costs, start)):
        other = evaluate(costs, bounds)
        assert other is None or (found is not None and found.slowest_ns <= other.slowest_ns)


def test_brute_force_cases_are_of_all_kinds() -> None:
    answers = [Costs(seed).brute_force() for seed in range(200)]
    assert 40 < answers.count(None) < 120


def test_greedy_shifts_layers_from_the_slowest() -> None:
    times = [9, 1, 1, 1, 1, 1]
    costs = lambda first, last, _: float(sum(times[first:last]))  # noqa: E731
    assert greedy(costs, (0, 3, 6)) == (0, 1, 6)
    assert greedy(costs, (0, 1, 6)) == (0, 1, 6)


def test_greedy_stops_where_a_shift_makes_the_neighbour_slower() -> None:
    times = [5, 5, 3, 6, 1]
    costs = lambda first, last, _: float(sum(times[first:last]))  # noqa: E731
    assert greedy(costs, (0, 2, 4, 5)) == (0, 2, 4, 5)
    assert split(costs, layers=5, stages=3) == evaluate(costs, (0, 1, 3, 5))


def test_greedy_moves_what_does_not_fit() -> None:
    costs = lambda first, last, stage: None if last - first > 2 else 1.0  # noqa: E731
    assert greedy(costs, (0, 1, 4, 6)) == (0, 2, 4, 6)


def test_no_floor_is_asked_for_ranges_above_the_least_slowest() -> None:
    calls = []

    def costs(first: int, last: int, stage: int) -> float:
        calls.append(last - first)
        return float(last - first)

    found = split(costs, layers=60, stages=20, floor_ns=lambda first, last: float(last - first))
    assert found is not None
    assert found.widths == (3,) * 20
    assert max(calls) <= 4
    assert len(calls) < 100


def test_even_gives_the_first_stages_more() -> None:
    assert even(7, 3) == (0, 3, 5, 7)
    assert even(130, 64, before=1, after=1)[:3] == (0, 3, 5)
    assert even(130, 64, before=1, after=1)[-2:] == (127, 130)
    assert even(4, 4, before=1, after=1) == (0, 1, 2, 3, 4)


def test_lists_count_all_layers_or_all_but_the_ends() -> None:
    assert parse_split("12,12,11,13", 48, 4) == (0, 12, 24, 35, 48)
    assert parse_split("2, 2", 6, 2, before=1, after=1) == (0, 3, 6)
    assert parse_split("3,3", 6, 2, before=1, after=1) == (0, 3, 6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("12,x", "not a list"),
        ("12,-1", "not a list"),
        ("", "not a list"),
        ("6", "has 1 stages, --pp 2"),
        ("6,0", "stage 1 without layers"),
        ("3,2", "adds up to 5, but the model has 6 layers, 4 without ends"),
    ],
)
def test_wrong_lists_are_refused(text: str, says: str) -> None:
    with pytest.raises(LynxError, match=says):
        parse_split(text, 6, 2, before=1, after=1)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(LynxError, match="3 layers cannot be split into 4 stages"):
        even(3, 4)
    with pytest.raises(LynxError, match="into 0 stages"):
        split(lambda first, last, stage: 1.0, layers=3, stages=0)
