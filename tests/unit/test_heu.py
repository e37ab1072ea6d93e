"""HEU and `ondemand`: closed forms, brute force, every budget of a sweep legal, never worse than on demand."""

from __future__ import annotations

import itertools
import random

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_order
from lynx_plan.model.graph import CostGraph, Phase, Role, StorageKind
from lynx_plan.model.plan import GivenWindow, Outcome
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.base import NOT_NEEDED, Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.order import Decisions, Placement, build_order
from lynx_plan.solve.registry import SOLVERS
from lynx_plan.solve.score import Scored, score
from tests.unit.builders import GraphBuilder, Sizes, megatron_graph

SHARES = (0.9, 0.7, 0.5, 0.4, 0.3, 0.25)


def solve(graph: CostGraph, algo: str, activation_bytes: int) -> tuple[Solution, Outcome]:
    """Under a budget for activations; the plan checked, and its outcome."""
    budget = graph.static.total_bytes + activation_bytes
    solution = SOLVERS[algo](Problem(graph=graph, index=GraphIndex(graph), budget_bytes=budget))
    check_order(graph, solution.items, budget_bytes=solution.minimum_budget_bytes or budget)
    return solution, predict(graph, solution.items)


def none_of(graph: CostGraph) -> Outcome:
    return predict(graph, build_order(GraphIndex(graph), Decisions()))


def slow_link(layers: int = 6, **sizes: int | bool) -> CostGraph:
    """Windows with 4 ms of room after the weight gradients."""
    return megatron_graph(layers, Sizes(comm_ns=6_000_000, tp=4, **sizes))  # type: ignore[arg-type]


def test_nothing_is_recomputed_where_nothing_needs_to_be() -> None:
    graph = slow_link()
    none = none_of(graph)
    for algo in ("heu", "ondemand"):
        solution, outcome = solve(graph, algo, none.peak_activation_bytes)
        assert solution.status == NOT_NEEDED
        assert outcome == none


@pytest.mark.parametrize("layers", [6, 8])
def test_windows_with_room_hide_all_recomputation_also_of_the_last_layer(layers: int) -> None:
    graph = slow_link(layers)
    none = none_of(graph)
    solution, outcome = solve(graph, "heu", none.peak_activation_bytes // 2)
    assert any(item.replica for item in solution.items)
    assert outcome.recompute_hidden_ns > 0
    assert outcome.recompute_exposed_ns == 0
    assert outcome.step_ns == none.step_ns


def test_copies_go_to_the_windows_of_the_layer_before_in_backward_where_only_those_have_room() -> None:
    # Up's output is needed at the start of the layer's backward: no window of its own layer comes before.
    graph = slow_link()
    _, outcome = solve(graph, "heu", none_of(graph).peak_activation_bytes * 4 // 10)
    solution, _ = solve(graph, "heu", none_of(graph).peak_activation_bytes * 4 // 10)
    names = [(graph.ops[i.op].name, i.replica) for i in solution.items]
    first_layer = [index for index, op in enumerate(solution.items) if op.op in graph.layers[1].ops]
    up = next(p for p in first_layer if names[p] == ("up", 1))
    own_backward = next(p for p in first_layer if names[p] == ("down_dgrad", 0))
    assert up < own_backward
    assert outcome.recompute_exposed_ns < outcome.recompute_hidden_ns


@pytest.mark.parametrize("share", SHARES)
def test_without_room_heu_is_ondemand(share: float) -> None:
    graph = megatron_graph(4, Sizes(comm_ns=1000))
    budget = int(share * none_of(graph).peak_activation_bytes)
    heu, ondemand = solve(graph, "heu", budget), solve(graph, "ondemand", budget)
    assert heu[1].step_ns == ondemand[1].step_ns
    assert heu[0].items == ondemand[0].items


@pytest.mark.parametrize("dropout", [False, True])
def test_every_budget_gives_a_legal_plan_no_slower_than_ondemand_and_full(dropout: bool) -> None:
    graph = slow_link(dropout=dropout)
    peak = none_of(graph).peak_activation_bytes
    full = predict(graph, SOLVERS["full"](Problem(graph=graph, index=GraphIndex(graph), budget_bytes=0)).items)
    exposed = []
    for share in SHARES:
        budget = int(share * peak)
        (heu, own), (ondemand, other) = solve(graph, "heu", budget), solve(graph, "ondemand", budget)
        if heu.minimum_budget_bytes is not None:
            assert ondemand.minimum_budget_bytes is not None
            continue
        assert own.peak_activation_bytes <= budget
        if ondemand.minimum_budget_bytes is None:
            assert own.step_ns <= other.step_ns
        if budget >= full.peak_activation_bytes:
            assert own.step_ns <= full.step_ns
        exposed.append(own.recompute_exposed_ns)
    assert len(exposed) >= 3
    assert exposed == sorted(exposed)


@pytest.mark.parametrize("algo", ["heu", "ondemand"])
def test_the_minimum_of_an_infeasible_budget_is_reachable(algo: str) -> None:
    graph = slow_link(4)
    solution, outcome = solve(graph, algo, none_of(graph).peak_activation_bytes // 10)
    assert solution.minimum_budget_bytes == outcome.peak_bytes
    again, outcome = solve(graph, algo, solution.minimum_budget_bytes - graph.static.total_bytes)
    assert again.minimum_budget_bytes is None
    assert outcome.peak_bytes == solution.minimum_budget_bytes


def test_all_layers_of_a_class_get_one_policy() -> None:
    graph = slow_link()
    solution, _ = solve(graph, "heu-uniform", none_of(graph).peak_activation_bytes * 4 // 10)
    layers = [
        {graph.ops[i.op].name for i in solution.items if i.replica and i.op in layer.ops} for layer in graph.layers
    ]
    assert layers[1]
    assert all(names == layers[1] for names in layers[1:-1])


def test_the_last_layer_borrows_a_window_of_the_head() -> None:
    graph = slow_link(4)
    solution, outcome = solve(graph, "heu-uniform", none_of(graph).peak_activation_bytes * 45 // 100)
    names = [graph.ops[item.op].name + "'" * item.replica for item in solution.items]
    window = names[names.index("logits_reduce") : names.index("logits_reduce_wait")]
    assert "up'" in window
    assert outcome.recompute_exposed_ns == 0


@pytest.mark.parametrize(("comm_ns", "steal_ns"), [(30_000, 0), (60_000, 30_000)])
def test_what_is_dropped_fits_the_room_of_each_window(comm_ns: int, steal_ns: int) -> None:
    """30 us of room in each of two windows: better Y and Z (25 us each) than the as large X, which takes 40 us."""
    b = GraphBuilder()
    b.layer("layers.0")
    source = b.source("input", 8, StorageKind.INPUT)
    (x,) = b.op("x", (source,), (100,), time_ns=40_000)
    (y,) = b.op("y", (source,), (52,), time_ns=25_000)
    (z,) = b.op("z", (source,), (52,), time_ns=25_000)
    (joined,) = b.op("join", (x, y, z), (4,))
    (big,) = b.op("big", (joined,), (1000,))
    (gradient,) = loss = b.op("loss", (big,), (4,))
    for number, reads in enumerate(((), (x, y), (z,))):
        (gradient,) = b.op(f"b{number}", (gradient, *reads), (4,), phase=Phase.BACKWARD)
        if number < 2:
            gradient = b.all_reduce(f"r{number}", gradient, 4, Phase.BACKWARD, comm_ns=comm_ns, steal_ns=steal_ns)
    b.accumulate("w", gradient)
    graph = b.build(outputs=loss)
    solution, outcome = solve(graph, "heu", none_of(graph).peak_activation_bytes - 100)
    assert [graph.ops[item.op].name for item in solution.items if item.replica] == ["y", "z"]
    assert (outcome.recompute_hidden_ns, outcome.recompute_exposed_ns) == (50_000, 0)


def chain(seed: int, length: int = 6, *, statistics: bool = False, windows: bool = False) -> CostGraph:
    """One layer: a chain in which backward reads every value, and at random its own output too.

    `statistics`: at random, backward reads a second, small output of the op instead of the value.
    `windows`: at random, gradients are reduced, with contention.
    """
    rng = random.Random(seed)
    b = GraphBuilder()
    values = [b.source("x", 100, StorageKind.INPUT)]
    saved = list(values)
    b.layer("layers.0")
    for i in range(length):
        sizes: tuple[int, ...] = (4 * rng.randrange(1, 20),)
        small = statistics and 0 < i < length - 1 and rng.random() < 0.4
        made = b.op(f"f{i}", (values[-1],), (*sizes, 4) if small else sizes, time_ns=1000 * rng.randrange(1, 30))
        values.append(made[0])
        saved.append(made[-1])
    gradient = loss = values[-1]
    for i in reversed(range(length)):
        reads = (saved[i], saved[i + 1]) if i < length - 1 and rng.random() < 0.4 else (saved[i],)
        sizes = (4 * rng.randrange(1, 10),)
        (gradient,) = b.op(f"b{i}", (gradient, *reads), sizes, phase=Phase.BACKWARD, time_ns=5000)
        if windows and i in (length - 1, length - 3):
            comm_ns = 1000 * rng.randrange(10, 50)
            steal_ns = comm_ns // rng.randrange(2, 9)
            phase = Phase.BACKWARD
            gradient = b.all_reduce(f"r{i}", gradient, sizes[0], phase, comm_ns=comm_ns, steal_ns=steal_ns)
    b.accumulate("w", gradient)
    return b.build(outputs=(loss,))


def all_on_demand_plans(graph: CostGraph) -> list[Scored]:
    """Every set of dropped values."""
    index = GraphIndex(graph)
    facts = Candidates(index)
    droppable = [op.id for op in graph.ops if facts.droppable(op.id)]
    sets = itertools.chain.from_iterable(itertools.combinations(droppable, n) for n in range(len(droppable) + 1))
    decisions = (Decisions(placements=tuple(Placement(op=op) for op in dropped)) for dropped in sets)
    return [score(graph, build_order(index, decision)) for decision in decisions]


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_ondemand_equals_brute_force_on_chains(seed: int, statistics: bool) -> None:
    graph = chain(seed, statistics=statistics)
    plans = all_on_demand_plans(graph)
    peak, least = plans[0].peak_bytes, min(plan.peak_bytes for plan in plans)
    for share in (0.9, 0.75, 0.6):
        budget = int(share * peak)
        solution, outcome = solve(graph, "ondemand", budget)
        fitting = [plan.end_ns for plan in plans if plan.peak_bytes <= budget]
        if fitting:
            assert outcome.step_ns == min(fitting)
        else:
            assert solution.minimum_budget_bytes == graph.static.total_bytes + least


def all_plans(graph: CostGraph) -> list[Scored]:
    """Every candidate kept, on demand, or in each of the windows."""
    index = GraphIndex(graph)
    facts = Candidates(index)
    windows = [op.id for op in graph.ops if op.role is Role.COLLECTIVE]
    choices = [
        [None, Placement(op=op.id), *(Placement(op=op.id, window=window) for window in windows)]
        for op in graph.ops
        if facts.droppable(op.id)
    ]
    decisions = (
        Decisions(placements=tuple(placement for placement in chosen if placement))
        for chosen in itertools.product(*choices)
    )
    return [score(graph, build_order(index, decision)) for decision in decisions]


@pytest.mark.parametrize("seed", range(6))
def test_heu_equals_brute_force_on_chains_with_windows(seed: int) -> None:
    graph = chain(seed, 5, windows=True)
    plans = all_plans(graph)
    peak = plans[0].peak_bytes
    for share in (0.9, 0.75, 0.6):
        budget = int(share * peak)
        fitting = [plan.end_ns for plan in plans if plan.peak_bytes <= budget]
        if fitting:
            assert solve(graph, "heu", budget)[1].step_ns == min(fitting)


@pytest.mark.parametrize("algo", ["heu", "ondemand"])
def test_a_byte_less_than_a_plan_needs_gives_the_next_best_plan(algo: str) -> None:
    # The MILP's tolerances are wider than a byte: its first answer does not fit, and a nudge must change it.
    graph = slow_link(hidden=1 << 32)
    _, first = solve(graph, algo, none_of(graph).peak_activation_bytes * 45 // 100)
    solution, second = solve(graph, algo, first.peak_activation_bytes - 1)
    assert solution.minimum_budget_bytes is None
    assert second.peak_activation_bytes < first.peak_activation_bytes
    assert second.peak_activation_bytes > first.peak_activation_bytes * 3 // 4


def test_given_windows_before_the_backward_pass_hide_what_would_be_made_on_demand() -> None:
    """The peak is in the forward pass here, so that copies made right after it cost no memory."""
    graph = slow_link(6)
    index = GraphIndex(graph)
    none = score(graph, build_order(index, Decisions()))
    for share in (60, 45, 35):
        budget = graph.static.total_bytes + none.peak_bytes * share // 100
        plain = Problem(graph=graph, index=index, budget_bytes=budget)
        given = Problem(
            graph=graph, index=index, budget_bytes=budget, windows=(GivenWindow(kind="bubble", room_ns=40_000_000),)
        )
        without, with_ = SOLVERS["ondemand"](plain), SOLVERS["ondemand"](given)
        check_order(graph, with_.items, budget_bytes=with_.minimum_budget_bytes or budget)
        waits = score(graph, without.items, idle_ns=40_000_000).end_ns
        assert score(graph, with_.items, idle_ns=40_000_000).end_ns <= waits
