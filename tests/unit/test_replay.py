"""Random ops that run again: their saved state in memory, time, rules and in what the planner chooses."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lynx_plan.analyze.flow import RandomState, resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.replay import REPLAY_NS, SAVE_NS, STATE_BYTES
from lynx_plan.check import check_order
from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph, Phase, StorageKind
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.simulate.outcome import predict
from lynx_plan.simulate.streams import item_times
from lynx_plan.solve.base import Problem
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.registry import SOLVERS
from tests.unit.builders import GraphBuilder, Sizes, megatron_graph, op_named, plain_order
from tests.unit.test_heu import all_on_demand_plans

STATE = STATE_BYTES["cpu"]


def chain(sizes: tuple[int, ...], randoms: tuple[int, ...], seed: int = 0) -> CostGraph:
    """One layer: a chain of values of these bytes that backward all reads; the ops `randoms` draw."""
    rng = random.Random(seed)
    b = GraphBuilder()
    values = [b.source("x", 100, StorageKind.INPUT)]
    b.layer("layers.0")
    for i, size in enumerate(sizes):
        values += b.op(f"f{i}", (values[-1],), (size,), rng=i in randoms, time_ns=1000 * rng.randrange(1, 30))
    gradient = loss = values[-1]
    for i in reversed(range(len(sizes))):
        (gradient,) = b.op(f"b{i}", (gradient, values[i]), (8,), phase=Phase.BACKWARD, time_ns=5000)
    b.accumulate("w", gradient)
    return b.build(outputs=(loss,))


GRAPH = chain((20000, 20000, 20000), (0, 1))
# f0 f1 f2 b2 [f0r1 f1r1] b1 b0 accumulate: backward reads f1 first, which is made from f0.
AGAIN = (*map(Item, range(3)), Item(0, 1), Item(1, 1), *map(Item, range(3, 7)))


def test_the_state_is_held_from_the_original_to_the_last_copy() -> None:
    flow = resolve(GRAPH, AGAIN)
    assert flow.states == (RandomState(op=0, start=0, end=3), RandomState(op=1, start=1, end=4))
    curve = memory_curve(GRAPH, AGAIN, flow)
    assert curve.bytes[0] == 20000 + STATE
    assert curve.bytes[2] == 40000 + 2 * STATE
    assert curve.bytes[4] == 60000 + STATE  # f2 is the loss; the copies of f0 and f1; the state of f1
    assert curve.bytes[5] == 60000 + 8


def test_a_gpu_state_is_small() -> None:
    gpu = replace(GRAPH, machine=replace(GRAPH.machine, device="cuda"))
    assert memory_curve(gpu, AGAIN, resolve(gpu, AGAIN)).bytes[0] == 20000 + 16


def test_saving_and_replaying_take_time() -> None:
    times = item_times(GRAPH, AGAIN).compute_ns
    assert times[0] == GRAPH.ops[0].time_ns + SAVE_NS["cpu"]
    assert times[3] == GRAPH.ops[0].time_ns + REPLAY_NS["cpu"]
    assert item_times(GRAPH, plain_order(GRAPH)).compute_ns[0] == GRAPH.ops[0].time_ns


def test_the_checker_wants_the_original_first() -> None:
    check_order(GRAPH, AGAIN, budget_bytes=None)
    early = (Item(0), Item(1, 1), Item(1), Item(2), *AGAIN[5:])
    with pytest.raises(AnswerNo, match=r"random-state: draws again before its original"):
        check_order(GRAPH, early, budget_bytes=None)
    with pytest.raises(AnswerNo, match="before it has drawn any"):
        resolve(GRAPH, early)


def test_a_random_op_runs_again_only_if_it_makes_more_than_its_state() -> None:
    for size, expected in ((STATE, False), (STATE + 8, True)):
        graph = chain((20000, size, 20000), (1,))
        assert Candidates(GraphIndex(graph)).droppable(1) is expected


@pytest.mark.parametrize("seed", range(10))
def test_ondemand_equals_brute_force_with_random_ops(seed: int) -> None:
    rng = random.Random(seed)
    sizes = tuple([8 * rng.randrange(400, 2500) for _ in range(6)])
    graph = chain(sizes, tuple(i for i in range(6) if rng.random() < 0.5), seed)
    plans = all_on_demand_plans(graph)
    peak, least = plans[0].peak_bytes, min(plan.peak_bytes for plan in plans)
    for share in (0.9, 0.75, 0.6):
        budget = graph.static.total_bytes + int(share * peak)
        solution = SOLVERS["ondemand"](Problem(graph=graph, index=GraphIndex(graph), budget_bytes=budget))
        check_order(graph, solution.items, budget_bytes=solution.minimum_budget_bytes or budget)
        fitting = [plan.end_ns for plan in plans if plan.peak_bytes <= int(share * peak)]
        if fitting:
            assert predict(graph, solution.items).step_ns == min(fitting)
        else:
            assert solution.minimum_budget_bytes == graph.static.total_bytes + least


def test_the_smallest_peak_of_layers_with_dropout_draws_their_masks_again() -> None:
    graph = megatron_graph(6, Sizes(dropout=True))
    draws = {op_named(graph, f"layers.{layer}.dropout1") for layer in range(6)}
    for algo in ("heu", "ondemand"):
        solution = SOLVERS[algo](Problem(graph=graph, index=GraphIndex(graph), budget_bytes=1))
        assert {item.op for item in solution.items if item.replica} & draws
        check_order(graph, solution.items, budget_bytes=solution.minimum_budget_bytes)
