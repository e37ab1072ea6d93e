"""OPT's MILP equals brute force on hundreds of small random graphs, with windows and without; every plan is legal."""

from __future__ import annotations

import random

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_order
from lynx_plan.model.graph import CostGraph
from lynx_plan.solve import opt
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import Effort, Problem
from lynx_plan.solve.milp import MilpStatus
from lynx_plan.solve.registry import SOLVERS
from lynx_plan.solve.score import score
from lynx_plan.solve.stage_milp import StageMilp
from lynx_plan.solve.stage_model import StageModel
from tests.unit.random_orders import random_graph
from tests.unit.stage_brute_force import BruteForce

MOST = 4000  # plans of a graph that are listed
BATCHES, PER_BATCH = 10, 55  # 550 graphs


def graph_of(seed: int) -> CostGraph:
    rng = random.Random(seed)
    return random_graph(seed, ops=rng.randrange(5, 13), layers=rng.randrange(1, 4))


def stage_of(graph: CostGraph, seed: int) -> StageModel:
    """Every third stage has its windows closed, every fourth one has given windows."""
    analysis = analysis_of(GraphIndex(graph))
    idle_ns = 40 if seed % 4 == 0 else 0
    return StageModel(analysis.candidates, analysis.none, idle_ns=idle_ns, windows_open=seed % 3 > 0)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_milp_equals_brute_force(batch: int) -> None:
    compared = infeasible = windows = recomputing = 0
    seed = 1000 * batch
    while compared < PER_BATCH:
        seed += 1
        stage = stage_of(graph_of(seed), seed)
        brute = BruteForce(stage)
        if not 2 <= brute.count <= MOST:
            continue
        share = random.Random(seed).choice((0.5, 0.6, 0.7, 0.8, 0.9, 0.97))
        budget = int(share * stage.none.peak_bytes)
        best = brute.best(budget)
        milp = StageMilp(stage, stage.none.end_ns)
        milp.set_budget(budget)
        result = milp.milp.solve(gap=0.0)
        if best is None:
            assert result.status is MilpStatus.INFEASIBLE, seed
            infeasible += 1
        else:
            found = (result.objective * milp.time_unit) - stage.none.end_ns
            assert found == pytest.approx(best, abs=1e-6 * max(1.0, best) + 1e-5), seed
            recomputing += best > 0
        windows += bool(stage.windows)
        compared += 1
    assert windows >= PER_BATCH // 4
    assert recomputing >= 3
    assert infeasible < compared


@pytest.mark.parametrize("batch", range(6))
def test_every_algorithm_is_legal_and_heu_is_never_better_than_opt(batch: int) -> None:
    for seed in range(100 * batch, 100 * batch + 6):
        graph = graph_of(seed)
        index = GraphIndex(graph)
        peak = analysis_of(index).none.peak_bytes
        for share in (90, 65):
            budget = graph.static.total_bytes + peak * share // 100
            problem = Problem(graph=graph, index=index, budget_bytes=budget, effort=Effort(gap=0.0))
            solutions = {name: solve(problem) for name, solve in SOLVERS.items()}
            for name, solution in solutions.items():
                copies = any(item.replica for item in solution.items)
                fits = solution.minimum_budget_bytes is None and copies and name not in ("full", "selective")
                check_order(graph, solution.items, budget_bytes=budget if fits else None)
            if solutions["heu"].minimum_budget_bytes is None:
                ends = {name: score(graph, solutions[name].items).end_ns for name in ("heu", "opt")}
                assert ends["opt"] <= ends["heu"], (seed, share)


@pytest.mark.parametrize("seed", [3, 17, 42])
def test_five_searches_give_one_order(seed: int) -> None:
    graph = graph_of(seed)
    peak = analysis_of(GraphIndex(graph)).none.peak_bytes
    for solve in (SOLVERS["heu"], opt.solve):
        orders = set()
        for _ in range(5):
            budget = graph.static.total_bytes + peak * 7 // 10
            orders.add(solve(Problem(graph=graph, index=GraphIndex(graph), budget_bytes=budget)).items)
        assert len(orders) == 1
