"""Checkmate's MILP against an exhaustive search, Rotor's table against its plain recursion, the knapsack by hand."""

from __future__ import annotations

import heapq
import itertools
import random
from functools import cache

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_order
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Effort, Problem
from lynx_plan.solve.checkmate import solve as checkmate
from lynx_plan.solve.knapsack import by_dynamic_program, greedily
from lynx_plan.solve.milp import MilpStatus
from lynx_plan.solve.remat_milp import Node, RematMilp
from lynx_plan.solve.rotor import SLOTS, Chain, ladder_of, plan_chain
from lynx_plan.solve.rotor import solve as rotor
from lynx_plan.solve.score import score
from tests.unit.builders import Sizes, megatron_graph
from tests.unit.random_orders import random_graph

MIB = 1 << 20


def nodes_of(seed: int) -> tuple[list[Node], int]:
    """A chain of 3 or 4 forward nodes with a skip at random, and its backward, which reads forward values."""
    rng = random.Random(seed)
    count = rng.choice((3, 4))
    nodes = []
    for i in range(count):
        reads = {i - 1} if i else set()
        if i > 1 and rng.random() < 0.4:
            reads.add(rng.randrange(i - 1))
        nodes.append(
            Node(reads=tuple(sorted(reads)), time_ns=rng.randrange(1, 9), bytes=rng.randrange(1, 4) * MIB, movable=True)
        )
    for i in reversed(range(count)):
        reads = {len(nodes) - 1, i} | ({i - 1} if i else set())
        nodes.append(Node(reads=tuple(sorted(reads)), time_ns=5, bytes=MIB, movable=False))
    return nodes, count


def exhaustive(nodes: list[Node], forward: int, budget: int) -> int | None:
    """The least time of any schedule whose live values never exceed the budget: Dijkstra over (progress, live set)."""
    counter = itertools.count()
    queue = [(0, next(counter), 0, frozenset[int]())]
    seen: set[tuple[int, frozenset[int]]] = set()
    while queue:
        cost, _, done, live = heapq.heappop(queue)
        if done == len(nodes):
            return cost
        if (done, live) in seen:
            continue
        seen.add((done, live))
        again = range(min(done, forward)) if done >= forward else range(0)
        for node in (*again, done):
            if node in live or not live.issuperset(nodes[node].reads):
                continue
            after = live | {node}
            if sum(nodes[i].bytes for i in after) > budget:
                continue
            progress = done + (node == done)
            for size in range(len(after) + 1):
                for dropped in itertools.combinations(sorted(after), size):
                    item = (cost + nodes[node].time_ns, next(counter), progress, after - set(dropped))
                    heapq.heappush(queue, item)
    return None


@pytest.mark.parametrize("seed", range(12))
def test_checkmate_s_milp_equals_an_exhaustive_search(seed: int) -> None:
    nodes, forward = nodes_of(seed)
    milp = RematMilp(nodes, forward)
    keeping = milp.keeping_all()
    assert milp.milp.satisfied(keeping)
    peak = round(max(keeping[column] for column in milp.u.values()))
    for budget in range(peak, 2, -1):
        milp.set_budget(budget * MIB)
        result = milp.milp.solve(gap=0.0)
        best = exhaustive(nodes, forward, budget * MIB)
        if best is None:
            assert result.status is MilpStatus.INFEASIBLE
            return
        assert round(result.objective * milp.time_unit) == best


@pytest.mark.parametrize("seed", range(10))
def test_rotor_s_table_is_its_recursion(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(2, 7)
    chain = Chain(
        forward_ns=tuple(rng.randrange(1, 9) for _ in range(count)),
        input_bytes=tuple(rng.randrange(1, 4) for _ in range(count)),
        saved_bytes=tuple(rng.randrange(3, 9) for _ in range(count)),
    )

    @cache
    def least(i: int, j: int, slots: int) -> float:
        own = chain.forward_ns[i]
        if i == j:
            return own if chain.saved_bytes[i] <= slots else float("inf")
        options = [float("inf")]
        if chain.saved_bytes[i] <= slots:
            options.append(own + least(i + 1, j, slots - chain.saved_bytes[i]))
        for k in range(i + 1, j + 1):
            if chain.input_bytes[k] <= slots:
                ahead = sum(chain.forward_ns[i:k])
                options.append(ahead + least(k, j, slots - chain.input_bytes[k]) + least(i, k - 1, slots))
        return min(options)

    for slots in (4, 5, 6, 10, 12, 15, 20, 25, 30):
        unit = SLOTS // slots  # so many of the table's slots are one here
        found = plan_chain(
            Chain(
                forward_ns=chain.forward_ns,
                input_bytes=tuple(size * unit for size in chain.input_bytes),
                saved_bytes=tuple(size * unit for size in chain.saved_bytes),
            ),
            float(SLOTS),
        )
        best = least(0, count - 1, slots)
        if found is None:
            assert best == float("inf")
            continue
        again = sum(chain.forward_ns[layer] for _, layers in found for layer in layers)
        assert sum(chain.forward_ns) + again == best


def test_rotor_recomputes_a_unit_chain_as_often_as_its_recursion_says() -> None:
    """Four unit layers that save one slot each: with 4 slots nothing runs again, with fewer, ever more does."""
    chain = Chain(forward_ns=(1,) * 4, input_bytes=(SLOTS,) * 4, saved_bytes=(SLOTS,) * 4)
    again = [
        None
        if (passes := plan_chain(chain, float(slots * SLOTS))) is None
        else sum(len(layers) for _, layers in passes)
        for slots in (1, 2, 3, 4)
    ]
    assert again == [None, 5, 2, 0]


@pytest.mark.parametrize("solve", [rotor, checkmate])
@pytest.mark.parametrize("seed", range(4))
def test_plans_that_recompute_more_than_once_are_legal_and_the_same_twice(seed: int, solve) -> None:  # type: ignore[no-untyped-def]
    graph = megatron_graph(4, Sizes(comm_ns=6_000_000, tp=4)) if seed == 0 else random_graph(seed, ops=8)
    orders = set()
    for _ in range(2):
        index = GraphIndex(graph)
        peak = analysis_of(index).none.peak_bytes
        budget = graph.static.total_bytes + peak * 7 // 10
        problem = Problem(graph=graph, index=index, budget_bytes=budget, effort=Effort(gap=0.01, time_limit_s=20.0))
        solution = solve(problem)
        check_order(graph, solution.items, budget_bytes=solution.minimum_budget_bytes or budget)
        orders.add(solution.items)
    assert len(orders) == 1


def test_less_memory_never_gives_rotor_a_faster_plan() -> None:
    graph = megatron_graph(8, Sizes(comm_ns=6_000_000, tp=4))
    index = GraphIndex(graph)
    peak, last = analysis_of(index).none.peak_bytes, 0
    assert len(ladder_of(analysis_of(index))) > 3
    for share in range(100, 20, -5):
        budget = graph.static.total_bytes + peak * share // 100
        solution = rotor(Problem(graph=graph, index=index, budget_bytes=budget))
        if solution.minimum_budget_bytes is not None:
            break
        end = score(graph, solution.items).end_ns
        assert end >= last
        last = end
    assert share < 80


@pytest.mark.parametrize("seed", range(20))
def test_the_dynamic_program_keeps_the_most_time(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randrange(1, 20) for _ in range(7)]
    times = [rng.randrange(1, 50) for _ in range(7)]
    budget = sum(sizes) * rng.random()
    best = max(
        sum(t for t, keep in zip(times, kept, strict=True) if keep)
        for kept in itertools.product((False, True), repeat=7)
        if sum(s for s, keep in zip(sizes, kept, strict=True) if keep) <= budget
    )
    kept = by_dynamic_program(sizes, times, budget)
    assert sum(s for s, keep in zip(sizes, kept, strict=True) if keep) <= budget
    assert sum(t for t, keep in zip(times, kept, strict=True) if keep) == best
    greedy = greedily(sizes, times, budget)
    assert sum(s for s, keep in zip(sizes, greedy, strict=True) if keep) <= budget
