"""Efficiency curves: points, between them, beyond them."""

from __future__ import annotations

import pytest

from lynx_plan.cost.efficiency import share_at
from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Efficiency


def curve(*points: tuple[int, float]) -> tuple[Efficiency, ...]:
    return tuple(Efficiency(size=size, share=share) for size, share in points)


def test_points_between_and_beyond() -> None:
    shares = curve((100, 0.2), (10_000, 0.6), (1_000_000, 0.5))
    assert [share_at(shares, size) for size in (1, 100)] == [0.2, 0.2]
    assert share_at(shares, 1000) == pytest.approx(0.4)  # half way in log(size)
    assert share_at(shares, 10_000) == pytest.approx(0.6)
    assert share_at(shares, 100_000) == pytest.approx(0.55)
    assert share_at(shares, 10**9) == 0.5


def test_no_curve_is_the_peak_itself() -> None:
    assert share_at((), 12345) == 1.0


@pytest.mark.parametrize(
    "points", [((10, 0.5), (10, 0.6)), ((20, 0.5), (10, 0.6)), ((10, 0.0),), ((10, 1.5),), ((0, 0.5),)]
)
def test_impossible_curves_are_errors(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(LynxError):
        share_at(curve(*points), 10)
