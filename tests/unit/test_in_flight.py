"""Mixes with several microbatches in flight equal exhaustive search, and the least room is the least."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from lynx_plan.solve import in_flight
from lynx_plan.solve.in_flight import freed_bytes, least_room, mix_in_flight
from lynx_plan.solve.mix import Mix, Options, peak_of

SEEDS = range(300)


def random_layers(rng: random.Random) -> list[Options]:
    """Layers whose peaks rise by what each saves; policies that free more cost more and may peak lower or higher."""
    layers, level = [], 0
    for _ in range(rng.randrange(1, 5)):
        saved, policies = rng.randrange(20, 60), rng.randrange(0, 5)
        freed = [0, *sorted(rng.randrange(1, saved) for _ in range(policies))]
        cost = [0, *sorted(rng.randrange(1, 50) for _ in range(policies))]
        peak = [level + saved + 20, *(level + saved + 25 - rng.randrange(30) for _ in range(policies))]
        layers.append(Options(cost=np.array(cost, float), freed=np.array(freed, float), peak=np.array(peak, float)))
        level += saved
    return layers


def all_mixes(layers: Sequence[Options]) -> Iterator[Mix]:
    for chosen in product(*(range(len(options.cost)) for options in layers)):
        cost = sum(float(options.cost[number]) for options, number in zip(layers, chosen, strict=True))
        yield Mix(chosen=chosen, cost=cost, peak=peak_of(layers, chosen), exact=True)


def case(seed: int) -> tuple[list[Options], float, int]:
    rng = random.Random(seed)
    layers, held = random_layers(rng), rng.randrange(1, 6)
    keep = max(float(options.peak[0]) for options in layers)
    least = min(mix.peak - (held - 1) * freed_bytes(layers, mix) for mix in all_mixes(layers))
    return layers, least + rng.uniform(-0.1, 1.1) * (keep - least + 1), held


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("few", [2, in_flight.FEW])
def test_equals_exhaustive_search(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first pass keeps next to no states, so that the second must find the best under its bounds."""
    monkeypatch.setattr(in_flight, "FEW", few)
    layers, room, held = case(seed)
    fitting = [m for m in all_mixes(layers) if m.peak <= room + (held - 1) * freed_bytes(layers, m)]
    found = mix_in_flight(layers, room=room, in_flight=held)
    if found is None:
        assert not fitting
    else:
        assert found.cost == min(mix.cost for mix in fitting)
        assert found.peak <= room + (held - 1) * freed_bytes(layers, found)
        assert found.chosen in [mix.chosen for mix in fitting]


def test_cases_are_of_all_kinds() -> None:
    answers = [mix_in_flight(layers, room=room, in_flight=n) for layers, room, n in map(case, SEEDS)]
    assert 10 < answers.count(None) < 100
    assert sum(answer is not None and answer.cost > 0 for answer in answers) > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_least_room_is_the_least_of_all_mixes(seed: int) -> None:
    layers, _, held = case(seed)
    least = min(mix.peak - (held - 1) * freed_bytes(layers, mix) for mix in all_mixes(layers))
    assert least_room(layers, held) == pytest.approx(least, abs=1e-3)


def test_few_states_still_find_a_mix_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "FEW", 2)
    for seed in SEEDS:
        layers, room, held = case(seed)
        exact, few = (mix_in_flight(layers, room=room, in_flight=held, states=n) for n in (4096, 2))
        assert (exact is None) == (few is None)
        if exact is not None and few is not None:
            assert few.cost >= exact.cost
            assert few.peak <= room + (held - 1) * freed_bytes(layers, few)


def test_what_one_microbatch_frees_makes_room_in_all() -> None:
    """One layer that saves 10: with three in flight and 26 bytes, keeping 10 each needs 30, keeping 8 each 24 and 2
    more at the peak."""
    layer = Options(cost=np.array([0.0, 5.0]), freed=np.array([0.0, 2.0]), peak=np.array([10.0, 10.0]))
    found = mix_in_flight([layer], room=26.0 - 2 * 10.0, in_flight=3)
    assert found is not None
    assert (found.chosen, found.cost) == ((1,), 5.0)
    assert mix_in_flight([layer], room=25.0 - 2 * 10.0, in_flight=3) is None
    assert mix_in_flight([layer], room=10.0, in_flight=3) == Mix(chosen=(0,), cost=0.0, peak=10.0, exact=True)
