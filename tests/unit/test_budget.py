"""Budgets as people write them."""

from __future__ import annotations

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.base import Problem
from lynx_plan.solve.budget import parse_budget
from lynx_plan.solve.registry import SOLVERS
from tests.unit.builders import MACHINE, megatron_graph

GRAPH = megatron_graph(3)


def peak(graph: CostGraph, algo: str) -> int:
    problem = Problem(graph=graph, index=GraphIndex(graph), budget_bytes=1 << 60)
    return predict(graph, SOLVERS[algo](problem).items).peak_activation_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60GiB", 60 << 30),
        (" 1.5 GB ", 1_500_000_000),
        ("auto", MACHINE.memory_bytes - MACHINE.margin_bytes),
        ("100%", GRAPH.static.total_bytes + peak(GRAPH, "none")),
        ("50%", GRAPH.static.total_bytes + peak(GRAPH, "none") // 2),
        ("12.5 %", GRAPH.static.total_bytes + peak(GRAPH, "none") // 8),
        ("between:full,none,0", GRAPH.static.total_bytes + peak(GRAPH, "full")),
        ("between:full,none,1", GRAPH.static.total_bytes + peak(GRAPH, "none")),
        ("between:full,none,0.5", GRAPH.static.total_bytes + (peak(GRAPH, "none") + peak(GRAPH, "full")) // 2),
    ],
)
def test_forms(text: str, expected: int) -> None:
    assert parse_budget(text, GRAPH) == expected


@pytest.mark.parametrize(
    "text", ["abc", "", "60", "60 GiBs", "%", "between:full,none", "between:full,none,2", "0GiB", "-5GiB"]
)
def test_bad_text_names_the_forms(text: str) -> None:
    with pytest.raises(LynxError) as caught:
        parse_budget(text, GRAPH)
    assert caught.value.exit_code == 2
    assert caught.value.where == "--budget"
    for form in ("60GiB", "70%", "auto", "between:full,none,0.5"):
        assert form in caught.value.hint


def test_between_unknown_algorithms_names_the_known_ones() -> None:
    with pytest.raises(LynxError, match="no algorithm 'nope'") as caught:
        parse_budget("between:full,nope,0.5", GRAPH)
    assert "ondemand" in caught.value.hint


def test_between_names_the_budget_not_the_algorithm_option() -> None:
    with pytest.raises(LynxError, match="no algorithm 'x'") as caught:
        parse_budget("between:x,none,0.5", megatron_graph(2))
    assert caught.value.where == "--budget"
