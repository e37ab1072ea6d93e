"""Explanations: why a value is kept or made again, and what fills a budget that no plan meets."""

from __future__ import annotations

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import expand
from lynx_plan.errors import Infeasible, LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.report.why import render_why, why_document
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.diagnosis import diagnose
from lynx_plan.solve.planner import make_plan
from lynx_plan.solve.why import Why, explain, find_op
from tests.golden.samples import rendered
from tests.unit.builders import Sizes, megatron_graph

GRAPH = megatron_graph(4, Sizes(comm_ns=6_000_000, tp=4))
NONE = analysis_of(GraphIndex(GRAPH)).none


def why(text: str, *, algo: str = "heu", budget: str = "50%", graph: CostGraph = GRAPH) -> Why:
    plan = make_plan(graph, algo=algo, budget=budget, enforce_budget=algo != "full").plan
    items = expand(plan.stages[0].program, graph.layers)
    return explain(graph, items, text, budget_bytes=plan.budget_bytes)


def test_what_is_kept_where_memory_is_not_short_costs_time_to_make_again() -> None:
    answer = why("layers.2.up", algo="none", budget="100%")
    assert not answer.recomputed
    assert answer.binding == "time"
    assert answer.other_step_ns > answer.step_ns
    assert answer.again_ns > 0
    assert "up" in answer.again


def test_what_is_made_again_for_the_budget_says_by_how_much_keeping_it_would_pass_it() -> None:
    budget = predict(GRAPH, NONE.items).peak_bytes
    plan = make_plan(GRAPH, algo="full", enforce_budget=False).plan
    items = expand(plan.stages[0].program, GRAPH.layers)
    loose = explain(GRAPH, items, "layers.1.gelu", budget_bytes=budget)
    assert loose.recomputed
    assert loose.binding in ("policy", "window")
    tight = explain(GRAPH, items, "layers.1.gelu", budget_bytes=plan.predicted.peak_bytes)
    assert tight.other_peak_bytes > tight.peak_bytes or tight.binding != "budget"
    answers = [explain(GRAPH, items, f"layers.{n}.up", budget_bytes=plan.predicted.peak_bytes) for n in range(4)]
    assert any(a.binding == "budget" and a.other_peak_bytes > a.budget_bytes for a in answers)


def test_windows_before_the_first_use_add_up() -> None:
    answer = why("layers.0.gelu")
    assert answer.rooms
    for room in answer.rooms:
        assert room.capacity_ns == 6_000_000
        assert room.left_ns <= room.capacity_ns


def test_names_of_a_value() -> None:
    index = GraphIndex(GRAPH)
    op = find_op(index, "layers.1.gelu")
    assert find_op(index, f"L{index.op_layer[op]}.gelu") == op
    with pytest.raises(LynxError, match=r"names .* values") as caught:
        find_op(index, "gelu")
    assert "layers.0.gelu" in caught.value.hint
    with pytest.raises(LynxError, match="no value 'gelv'"):
        find_op(index, "gelv")


def test_the_answer_as_text_and_document() -> None:
    answer = why("layers.1.gelu")
    text = rendered(render_why(answer))
    assert "because" in text
    assert answer.reason.split()[0] in text
    assert why_document(answer)["name"] == "gelu"


def test_an_infeasible_budget_names_what_binds_and_what_fills_it() -> None:
    with pytest.raises(Infeasible) as caught:
        make_plan(GRAPH, algo="heu", budget="5%")
    details = caught.value.details
    assert details["binding"] == ("activations",)
    assert "its peak is at" in caught.value.message
    with pytest.raises(Infeasible) as caught:
        make_plan(GRAPH, algo="heu", budget="1B")
    assert caught.value.details["binding"] == ("static", "activations")


def test_fillings_are_alive_at_the_peak_and_the_largest_come_first() -> None:
    found = diagnose(GraphIndex(GRAPH), NONE.items, 1)
    sizes = [filling.bytes for filling in found.fillings]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= found.activation_bytes == NONE.peak_bytes
    assert any(filling.count == 4 and filling.name.startswith("layers.*") for filling in found.fillings)
