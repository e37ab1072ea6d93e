"""Frontiers: undominated points, the knee, and how they are shown."""

from __future__ import annotations

import pytest

from lynx_plan.errors import LynxError
from lynx_plan.report.frontier import HEIGHT, chart, frontier_document, letters_of, render_frontier
from lynx_plan.report.plot import check_plot
from lynx_plan.solve.frontier import FrontierPoint, frontier, knee, undominated
from tests.golden.samples import rendered
from tests.unit.builders import Sizes, megatron_graph


def point(peak: int, step: int, algo: str = "heu") -> FrontierPoint:
    return FrontierPoint(algo=algo, budget_bytes=peak, peak_bytes=peak, step_ns=step)


def test_dominated_points_go_and_the_rest_rises_in_memory_and_falls_in_time() -> None:
    points = [point(30, 5), point(10, 9), point(20, 9), point(20, 7), point(40, 5)]
    assert undominated(points) == [point(10, 9), point(20, 7), point(30, 5)]


def test_the_knee_is_farthest_below_the_line_between_the_ends() -> None:
    points = [point(0, 100), point(20, 30), point(50, 20), point(100, 0)]
    assert knee(points) == point(20, 30)


@pytest.mark.parametrize(
    "points", [[], [point(1, 2)], [point(0, 2), point(9, 1)], [point(0, 4), point(1, 3), point(2, 2)]]
)
def test_no_knee_where_nothing_lies_below_the_line(points: list[FrontierPoint]) -> None:
    assert knee(points) is None


def test_heu_s_frontier_spans_from_its_least_peak_to_none_and_is_never_above_ondemand() -> None:
    graph = megatron_graph(6, Sizes(comm_ns=6_000_000, tp=4))
    points = frontier(graph, algos=("none", "ondemand", "heu"), points=6)
    by_algo = {name: [p for p in points if p.algo == name] for name in ("none", "ondemand", "heu")}
    assert len(by_algo["none"]) == 1
    assert len(by_algo["heu"]) >= 2
    for name in ("ondemand", "heu"):
        steps = [p.step_ns for p in by_algo[name]]
        assert steps == sorted(steps, reverse=True)
        assert all(p.peak_bytes <= p.budget_bytes for p in by_algo[name])
    for other in by_algo["ondemand"]:
        assert any(p.step_ns <= other.step_ns and p.budget_bytes <= other.budget_bytes for p in by_algo["heu"])


def test_letters_are_distinct_and_the_chart_shows_every_end() -> None:
    points = [point(10, 90, "heu"), point(50, 50, "heu-uniform"), point(90, 10, "opt")]
    letters = letters_of(points)
    assert list(letters.values()) == ["h", "e", "o"]
    lines = chart(points, points[1], letters).plain.splitlines()
    assert lines[0].split("|")[1][0] == "h"
    assert lines[HEIGHT - 1].split("|")[1][-1] == "o"
    assert any("*" in line for line in lines)
    text = rendered(render_frontier(points, points[1], "model"))
    assert "* knee" in text


def test_the_document_holds_every_point() -> None:
    points = [point(10, 90), point(90, 10)]
    document = frontier_document(points, None)
    assert document["knee"] is None
    assert [p["peak_bytes"] for p in document["points"]] == [10, 90]


def test_a_picture_needs_a_known_ending() -> None:
    with pytest.raises(LynxError, match=r"neither .png nor .svg"):
        check_plot("frontier.pdf")
