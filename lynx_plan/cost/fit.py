"""A machine file's numbers from measured points: peaks, efficiency curves, a link's latency and rate, contention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Efficiency, Link

_NS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Work of `size` (flops, or bytes) that took `time_ns`."""

    size: int
    time_ns: int

    @property
    def rate(self) -> float:
        """Per second."""
        return self.size * _NS / max(1, self.time_ns)


def curve(points: Sequence[Point]) -> tuple[int, tuple[Efficiency, ...]]:
    """The best rate of all points, and the share of it that each size reaches, by ascending size."""
    if not points:
        raise LynxError("no point was measured", hint="measure again: lynx machine measure")
    best = max(point.rate for point in points)
    ordered = sorted(points, key=lambda point: point.size)
    shares = tuple(Efficiency(size=p.size, share=max(1e-6, round(min(1.0, p.rate / best), 4))) for p in ordered)
    return round(best), shares


def all_reduce_link(points: Sequence[Point], ranks: int) -> tuple[Link, float]:
    """Latency and rate per rank of a ring all-reduce over `ranks`, and the largest relative error of the fit.

    Least squares of relative errors of t = 2(n-1) a + 2(n-1)/n S/b (collectives.py) in a and 1/b, neither negative.
    """
    if ranks < 2 or len(points) < 2:
        raise LynxError("a link needs at least two ranks and two sizes", hint="lynx machine measure --ranks 2")
    weights = [1 / point.time_ns**2 for point in points]
    total = sum(weights)
    size = sum(w * p.size for w, p in zip(weights, points, strict=True)) / total
    time = sum(w * p.time_ns for w, p in zip(weights, points, strict=True)) / total
    spread = sum(w * (p.size - size) ** 2 for w, p in zip(weights, points, strict=True))
    slope = sum(w * (p.size - size) * (p.time_ns - time) for w, p in zip(weights, points, strict=True)) / spread
    slope = slope if slope > 0 else max(points, key=lambda p: p.size).time_ns / max(p.size for p in points)
    start = max(0.0, time - slope * size)
    steps = 2 * (ranks - 1)
    link = Link(bytes_per_s=max(1, round(steps / ranks * _NS / slope)), latency_ns=round(start / steps))
    worst = max(abs((start + slope * p.size) / p.time_ns - 1) for p in points)
    return link, worst


def slowdown(alone_ns: int, beside_ns: int) -> float:
    """The share of its speed that work loses beside other work; 0 where it loses none."""
    return round(max(0.0, 1 - alone_ns / max(1, beside_ns)), 3)
