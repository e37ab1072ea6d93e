"""The mix of policies over layers: equal to brute force, and the least budget is tight."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lynx_plan.solve.mix import Mix, Options, best_mix, least_budget

Layers = list[Options]


def random_layers(rng: random.Random, integers: bool = True) -> Layers:
    """Up to 5 layers of up to 4 options; keeping everything (free, nothing freed) is always the first one."""
    layers = []
    for _ in range(rng.randrange(1, 6)):
        count = rng.randrange(1, 5)
        draw = (lambda most: rng.randrange(most)) if integers else (lambda most: rng.random() * most)
        layers.append(
            Options(
                cost=np.array([0.0] + [float(draw(12)) for _ in range(count - 1)]),
                freed=np.array([0.0] + [float(draw(30)) for _ in range(count - 1)]),
                peak=np.array([float(20 + draw(80)) for _ in range(count)]),
            )
        )
    return layers


def peak_of(layers: Layers, chosen: tuple[int, ...]) -> float:
    """While a layer runs, its own peak less all that the layers before it freed."""
    peaks = []
    for n, option in enumerate(chosen):
        freed = sum(float(layers[before].freed[chosen[before]]) for before in range(n))
        peaks.append(float(layers[n].peak[option]) - freed)
    return max(peaks)


def cost_of(layers: Layers, chosen: tuple[int, ...]) -> float:
    return sum(float(options.cost[n]) for options, n in zip(layers, chosen, strict=True))


def all_mixes(layers: Layers) -> list[tuple[float, float]]:
    """(cost, peak) of every choice."""
    choices = itertools.product(*(range(len(options.cost)) for options in layers))
    return [(cost_of(layers, chosen), peak_of(layers, chosen)) for chosen in choices]


def assert_true(layers: Layers, mix: Mix, budget: float) -> None:
    """What a mix says of itself holds."""
    assert mix.cost == pytest.approx(cost_of(layers, mix.chosen))
    assert max(0.0, peak_of(layers, mix.chosen)) == pytest.approx(mix.peak)
    assert mix.peak <= budget + 1e-9
    assert mix.exact


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_the_best_mix_equals_brute_force(seed: int, integers: bool) -> None:
    rng = random.Random(seed)
    layers = random_layers(rng, integers)
    mixes = all_mixes(layers)
    peaks = sorted({peak for _cost, peak in mixes})
    edge = 0.0 if integers else 1e-9  # bytes are whole and exact; sums of other numbers depend on their order
    for budget in (*peaks[:: max(1, len(peaks) // 12)], peaks[-1], peaks[0] - 0.5):
        budget += edge
        legal = [cost for cost, peak in mixes if peak <= budget]
        mix = best_mix(layers, budget)
        if not legal:
            assert mix is None
            continue
        assert mix is not None, budget
        assert mix.cost == pytest.approx(min(legal)), budget
        assert_true(layers, mix, budget)


@pytest.mark.parametrize("seed", range(60))
def test_the_least_budget_is_tight(seed: int) -> None:
    """To a byte: a mix fits there, and none a little more than a byte below."""
    layers = random_layers(random.Random(seed))
    least = min(peak for _cost, peak in all_mixes(layers))
    found = least_budget(layers)
    assert least <= found <= max(0.0, least) + 1.0
    assert best_mix(layers, found) is not None
    assert best_mix(layers, least - 1.0) is None


def test_thinned_states_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two states only, a mix is still legal, and says that it may not be the best."""
    monkeypatch.setattr("lynx_plan.solve.mix.FEW", 2)
    monkeypatch.setattr("lynx_plan.solve.mix.STATES", 2)
    cost, freed = np.array([0.0, 1.0, 3.0, 7.0]), np.array([0.0, 2.0, 5.0, 9.0])
    layers = [Options(cost=cost, freed=freed, peak=np.full(4, 20.0 + 10.0 * n)) for n in range(5)]
    mix = best_mix(layers, 37.0)
    assert mix is not None
    assert not mix.exact
    assert peak_of(layers, mix.chosen) <= 37.0


def test_no_layers_need_nothing() -> None:
    assert least_budget([]) == 0.0
