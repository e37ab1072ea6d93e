"""From measured points to a machine's numbers: what is put in comes out again."""

from __future__ import annotations

import pytest

from lynx_plan.cost.collectives import collective_ns
from lynx_plan.cost.efficiency import share_at
from lynx_plan.cost.fit import Point, all_reduce_link, curve, slowdown
from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link


def test_a_curve_gives_back_the_times_it_was_made_from():
    points = [
        Point(size=10**6, time_ns=10_000),
        Point(size=10**8, time_ns=200_000),
        Point(size=10**9, time_ns=2_500_000),
    ]
    best, shares = curve(points[::-1])
    assert best == 10**8 * 10**9 // 200_000
    for point in points:
        assert point.size * 10**9 / (best * share_at(shares, point.size)) == pytest.approx(point.time_ns, rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_link_is_found_again(ranks: int):
    link = Link(bytes_per_s=1_250_000_000, latency_ns=30_000)
    sizes = (4096, 2**16, 2**20, 2**23)
    points = [Point(size=s, time_ns=collective_ns("all_reduce", ranks, s, link)) for s in sizes]
    found, worst = all_reduce_link(points, ranks)
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-3)
    assert found.latency_ns == pytest.approx(link.latency_ns, rel=1e-3)
    assert worst < 1e-3


def test_a_fit_never_has_a_negative_latency_or_rate():
    falling = [Point(size=1000, time_ns=50_000), Point(size=10**6, time_ns=20_000)]
    link, worst = all_reduce_link(falling, 2)
    assert link.latency_ns >= 0
    assert link.bytes_per_s > 0
    assert worst > 0.1


def test_too_little_is_refused():
    with pytest.raises(LynxError, match="two ranks"):
        all_reduce_link([Point(size=1, time_ns=1)] * 2, 1)
    with pytest.raises(LynxError, match="no point"):
        curve([])


def test_slowdown_is_a_share_of_speed():
    assert slowdown(100, 125) == 0.2
    assert slowdown(100, 90) == 0.0
