"""The list scheduler under a limit of bytes: legal, never higher than without one, lower where it can be."""

from __future__ import annotations

import random

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_order
from lynx_plan.model.graph import CostGraph, Phase, Role
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.order import Decisions, Placement, build_order
from lynx_plan.solve.score import Scored, score
from tests.unit.builders import GraphBuilder, Sizes, StorageKind, megatron_graph
from tests.unit.random_orders import random_graph


def ordered(graph: CostGraph, placements: tuple[Placement, ...], limit_bytes: int | None = None) -> Scored:
    decisions = Decisions(placements=placements, limit_bytes=limit_bytes)
    items = build_order(GraphIndex(graph), decisions)
    check_order(graph, items, budget_bytes=None)
    return score(graph, items)


def some_placements(graph: CostGraph, seed: int) -> tuple[Placement, ...]:
    facts, rng = Candidates(GraphIndex(graph)), random.Random(seed)
    drop = [op.id for op in graph.ops if facts.droppable(op.id) and rng.random() < 0.5]
    return tuple(Placement(op=op) for op in facts.closure(drop))


@pytest.mark.parametrize("seed", range(40))
def test_orders_under_any_limit_are_legal_and_hold_every_op(seed: int) -> None:
    graph = random_graph(seed) if seed % 2 else megatron_graph(4, Sizes(comm_ns=6_000_000, tp=4))
    placements = some_placements(graph, seed)
    free = ordered(graph, placements)
    for share in (100, 90, 60, 10):
        limited = ordered(graph, placements, free.peak_bytes * share // 100)
        assert sorted(limited.items) == sorted(free.items)
        assert share < 100 or limited.peak_bytes <= free.peak_bytes


def test_a_weight_gradient_that_waits_for_a_window_runs_before_memory_overflows() -> None:
    """The gradient of w reads 100 bytes that die with it; waiting for the window keeps them under `wide`."""
    b = GraphBuilder()
    b.layer("layers.0")
    x = b.source("x", 8, StorageKind.INPUT)
    (kept,) = b.op("kept", (x,), (100,), time_ns=10)
    (loss,) = b.op("loss", (kept,), (4,), time_ns=10)
    (g,) = b.op("g", (loss,), (4,), phase=Phase.BACKWARD, time_ns=10)
    (dw,) = b.op("dw", (g, kept), (4,), phase=Phase.WEIGHT_GRADIENT, time_ns=10)
    b.accumulate("w", dw)
    (wide,) = b.op("wide", (g,), (80,), phase=Phase.BACKWARD, time_ns=10)
    reduced = b.all_reduce("reduce", wide, 4, Phase.BACKWARD, comm_ns=50)
    b.op("last", (reduced,), (4,), phase=Phase.BACKWARD, time_ns=10)
    graph = b.build(outputs=(loss,))
    free, limited = ordered(graph, ()), ordered(graph, (), 150)
    names = [graph.ops[item.op].name for item in limited.items if graph.ops[item.op].role is Role.COMPUTE]
    assert names.index("dw") < names.index("wide")
    assert free.peak_bytes > 180
    assert limited.peak_bytes < 130
    assert free.end_ns < limited.end_ns
