"""Stage costs: ranges against the graphs that cutting gives, budgets, in-flight; the split against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from lynx_plan.analyze.cut import cut
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import Infeasible
from lynx_plan.model.graph import CostGraph, Phase, StorageKind
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Problem
from lynx_plan.solve.heu import solve
from lynx_plan.solve.layer_costs import LayerCosts
from lynx_plan.solve.score import score
from lynx_plan.solve.split import evaluate, even, greedy
from lynx_plan.solve.stage_cost import StageCosts, auto_split, in_flight_1f1b, least_budget
from tests.unit.builders import GraphBuilder, Sizes, megatron_graph
from tests.unit.test_cut import encoder_decoder, tied_graph

KIB = 1 << 10
LAYERS = 8


def graph_of(layers: int = LAYERS - 2) -> CostGraph:
    """Communication is dear, so that recomputation hides in part; the head is light."""
    return megatron_graph(layers, Sizes(hidden=1 << 16, weight=1 << 10, comm_ns=300_000))


@pytest.fixture(scope="module")
def costs() -> StageCosts:
    return StageCosts(GraphIndex(graph_of()))


def saved_by(graph: CostGraph) -> int:
    """Bytes that backward ops of a stage read of what its forward makes or receives."""
    read = {graph.tensors[t].storage for op in graph.ops if op.phase is not Phase.FORWARD for t in op.inputs}
    flow = resolve(graph, analysis_of(GraphIndex(graph)).none.items)
    turn = sum(op.phase is Phase.FORWARD for op in graph.ops)
    made = {life.storage for life in flow.lifetimes if life.start < turn}
    gradients = {
        graph.tensors[t].storage
        for op in graph.ops
        if op.phase is not Phase.FORWARD
        for t in op.inputs
        if graph.tensors[t].producer < 0 and not any(t in o.inputs for o in graph.ops if o.phase is Phase.FORWARD)
    }
    return sum(graph.storages[s].bytes for s in read & made - gradients)


@pytest.mark.parametrize("graph", [graph_of(), encoder_decoder(5), tied_graph()])
def test_ranges_are_like_the_graphs_that_cutting_gives(graph: CostGraph) -> None:
    costs = StageCosts(GraphIndex(graph))
    count = len(graph.layers)
    for first, last in combinations(range(count + 1), 2):
        bounds = sorted({0, first, last, count})
        stage = next(s for s in cut(graph, bounds) if s.layers == range(first, last))
        assert costs.layer.static_bytes(first, last) == stage.graph.static.total_bytes
        assert costs.layer.saved_bytes(first, last) == saved_by(stage.graph)
    assert sum(costs.floor_ns(n, n + 1) for n in range(count)) == analysis_of(GraphIndex(graph)).none.end_ns


def test_values_that_skip_layers_are_counted_once_and_only_where_they_are() -> None:
    """f0's value is read backward in layers 0 and 2, and the last layer's gradient once more in layer 0."""
    b = GraphBuilder()
    b.layer("layers.0")
    x = b.source("x", 40, StorageKind.INPUT)
    (y0,) = b.op("f0", (x,), (100,))
    b.layer("layers.1")
    (y1,) = b.op("f1", (y0,), (10,))
    b.layer("layers.2")
    (y2,) = b.op("f2", (y1,), (10,))
    (g2, far) = b.op("b2", (y2, y0), (10, 1000), phase=Phase.BACKWARD)
    b.layer("layers.1")
    (g1,) = b.op("b1", (g2, y1), (10,), phase=Phase.BACKWARD)
    b.layer("layers.0")
    b.op("b0", (g1, far, y0), (10,), phase=Phase.BACKWARD)
    costs = LayerCosts(GraphIndex(b.build(outputs=(y2,))))
    ranges = [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)]
    assert [costs.saved_bytes(*one) for one in ranges] == [100, 10, 110, 110, 120, 120]
    assert [costs.foreign_bytes(*one) for one in ranges] == [0, 100 + 1000, 10, 0, 0, 0]


def test_time_and_peak_are_those_of_the_cut_stage(costs: StageCosts) -> None:
    """The peak but for what the stage's graph holds of sent values, which are there until the end of a plain order."""
    for stage in cut(graph_of(), (0, 3, 5, 8)):
        first, last = stage.layers.start, stage.layers.stop
        none = analysis_of(GraphIndex(stage.graph)).none
        assert costs.floor_ns(first, last) == pytest.approx(none.end_ns, rel=0.01)
        sent = sum(one.bytes for one in stage.sent)
        peak = costs.plain_bytes(first, last, in_flight=1) - stage.graph.static.total_bytes
        assert none.peak_bytes - sent <= peak <= none.peak_bytes + sent


def test_a_stage_alone_costs_what_heu_plans(costs: StageCosts) -> None:
    """The whole model as one stage, one microbatch in flight."""
    graph = graph_of()
    index = GraphIndex(graph)
    for share in (0.9, 0.7, 0.5):
        budget = int(graph.static.total_bytes + share * analysis_of(index).none.peak_bytes)
        time = costs.time_ns(0, LAYERS, budget_bytes=budget, in_flight=1)
        planned = score(graph, solve(Problem(graph=graph, index=index, budget_bytes=budget, interleave=False)).items)
        assert time == pytest.approx(planned.end_ns, rel=0.02)


def test_less_budget_or_more_in_flight_is_never_faster(costs: StageCosts) -> None:
    plain = int(costs.plain_bytes(1, 4, in_flight=3)) + 1
    least = int(costs.least_bytes(1, 4, in_flight=3)) + 1
    times = [costs.time_ns(1, 4, budget_bytes=least + (plain - least) * step // 10, in_flight=3) for step in range(11)]
    known = [time for time in times if time is not None]
    assert len(known) == 11
    assert known == sorted(known, reverse=True)
    assert known[-1] == costs.floor_ns(1, 4) < known[0]
    assert costs.time_ns(1, 4, budget_bytes=least - 2 * KIB, in_flight=3) is None
    more = costs.time_ns(1, 4, budget_bytes=plain, in_flight=4)
    assert more is not None
    assert more > costs.floor_ns(1, 4)


def test_alike_ranges_are_worked_out_once(costs: StageCosts) -> None:
    assert costs.time_ns(2, 4, budget_bytes=2500 * KIB, in_flight=2) == costs.time_ns(
        3, 5, budget_bytes=2500 * KIB, in_flight=2
    )
    assert costs.layer.saved_bytes(2, 4) == costs.layer.saved_bytes(3, 5)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("share", [0.35, 0.6, 1.1])
def test_the_split_equals_brute_force(costs: StageCosts, stages: int, share: float) -> None:
    in_flight = in_flight_1f1b(stages, 8)
    start = even(LAYERS, stages, before=1, after=1)
    plain = max(costs.plain_bytes(a, b, in_flight=n) for (a, b), n in zip(pairwise(start), in_flight, strict=True))
    budgets = [int(share * plain)] * stages

    def time_ns(first: int, last: int, stage: int) -> float | None:
        return costs.time_ns(first, last, budget_bytes=budgets[stage], in_flight=in_flight[stage])

    found = auto_split(costs, budgets=budgets, in_flight=in_flight)
    every = [evaluate(time_ns, (0, *inner, LAYERS)) for inner in combinations(range(1, LAYERS), stages - 1)]
    assert found.slowest_ns == min(other.slowest_ns for other in every if other is not None)
    for bounds in (start, greedy(time_ns, start)):
        other = evaluate(time_ns, bounds)
        assert other is None or found.slowest_ns <= other.slowest_ns


def test_the_smallest_budget_is_named_and_fits(costs: StageCosts) -> None:
    in_flight = in_flight_1f1b(3, 8)
    least = least_budget(costs, in_flight)
    auto_split(costs, budgets=[least] * 3, in_flight=in_flight)
    with pytest.raises(Infeasible, match="no split of 8 layers into 3 stages fits") as refused:
        auto_split(costs, budgets=[least * 99 // 100] * 3, in_flight=in_flight)
    assert refused.value.minimum_budget_bytes == least


def test_early_stages_take_fewer_layers_where_memory_binds() -> None:
    """With in-flight counts 4 to 1 and a budget that binds, the first stage recomputes or gives layers away."""
    graph = megatron_graph(16, Sizes(hidden=1 << 16, weight=1 << 10, comm_ns=0))
    costs, in_flight = StageCosts(GraphIndex(graph)), in_flight_1f1b(4, 8)
    tight = least_budget(costs, in_flight) * 11 // 10
    widths = auto_split(costs, budgets=[tight] * 4, in_flight=in_flight).widths
    assert widths[0] < widths[-1]
    loose = auto_split(costs, budgets=[1 << 40] * 4, in_flight=in_flight)
    assert loose.slowest_ns < auto_split(costs, budgets=[tight] * 4, in_flight=in_flight).slowest_ns


def test_the_ends_are_the_layers_without_numbers(costs: StageCosts) -> None:
    assert costs.layer.ends == (1, 1)
    graph = graph_of()
    plain = tuple(replace(layer, name=f"part{chr(97 + layer.id)}") for layer in graph.layers)
    assert StageCosts(GraphIndex(replace(graph, layers=plain))).layer.ends == (0, 0)


def test_in_flight_of_1f1b() -> None:
    assert in_flight_1f1b(4, 8) == (4, 3, 2, 1)
    assert in_flight_1f1b(4, 2) == (2, 2, 2, 1)
