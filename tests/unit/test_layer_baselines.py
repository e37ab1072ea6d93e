"""Baselines that go by layers or modules: what they recompute, where, and the best of their settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from lynx_plan import files
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.windows import windows
from lynx_plan.check import check_order
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Phase
from lynx_plan.model.plan import GivenWindow
from lynx_plan.solve.analysis import analysis_of
from lynx_plan.solve.base import NOT_NEEDED, Problem, Solution
from lynx_plan.solve.modules import MODULES
from lynx_plan.solve.registry import SOLVERS, solver
from lynx_plan.solve.score import Scored, score
from tests.unit.builders import GraphBuilder, Sizes, StorageKind, megatron_graph

GRAPH = megatron_graph(6, Sizes(comm_ns=6_000_000, tp=4))
INDEX = GraphIndex(GRAPH)
NONE = analysis_of(INDEX).none
SAMPLE = Path(__file__).parents[2] / "sample_profiles/gpt-1.3b-tp2-a100-80g-nvlink.profile.json.gz"


def solve(algo: str, share: int = 100, **fields: object) -> Solution:
    """Under a share of `none`'s peak; legal."""
    budget = GRAPH.static.total_bytes + NONE.peak_bytes * share // 100
    solution = solver(algo)(Problem(graph=GRAPH, index=INDEX, budget_bytes=budget, **fields))  # type: ignore[arg-type]
    check_order(GRAPH, solution.items, budget_bytes=None)
    return solution


def scored(algo: str, share: int = 100) -> Scored:
    return score(GRAPH, solve(algo, share).items)


def copied(solution: Solution) -> set[str]:
    return {GRAPH.ops[item.op].name for item in solution.items if item.replica}


def test_chunks_of_one_layer_are_full_recomputation() -> None:
    assert solve("uniform:1").items == solve("full").items


def test_larger_chunks_hold_less_between_passes_and_more_within_one() -> None:
    one, two, all_ = scored("uniform:1"), scored("uniform:2"), scored("uniform:6")
    assert two.end_ns > one.end_ns  # what crosses between the layers of a chunk runs again too
    forward = next(i for i, item in enumerate(one.items) if GRAPH.ops[item.op].phase is not Phase.FORWARD)
    assert all_.memory.bytes[forward] < two.memory.bytes[forward] < one.memory.bytes[forward]


def test_more_layers_recomputed_take_longer_and_need_less() -> None:
    rows = [scored(f"block:{count}") for count in range(1, 7)]
    assert [row.end_ns for row in rows] == sorted(row.end_ns for row in rows)
    assert [row.peak_bytes for row in rows] == sorted((row.peak_bytes for row in rows), reverse=True)
    assert rows[-1].items == solve("full").items


@pytest.mark.parametrize(
    "algo", ["uniform", "block", "knapsack", "overlap-collective", "overlap-p2p", "overlap-bubble"]
)
def test_the_best_setting_that_fits_is_taken(algo: str) -> None:
    budgets = (90, 70, 60)
    steps = []
    for share in budgets:
        solution = solve(algo, share)
        if solution.minimum_budget_bytes is None:
            found = score(GRAPH, solution.items)
            assert found.peak_bytes <= NONE.peak_bytes * share // 100
            steps.append(found.end_ns)
    assert steps == sorted(steps)
    assert steps


def test_settings_that_are_none() -> None:
    wrong = {
        "uniform:0": "not a number",
        "block:x": "not a number",
        "knapsack:best": "is no knapsack",
        "selective:mlps": "is no module",
    }
    for algo, message in wrong.items():
        with pytest.raises(LynxError, match=message):
            solve(algo)
    with pytest.raises(LynxError, match="takes no setting"):
        solve("heu:3")


def test_a_model_without_repeated_layers_is_told_so() -> None:
    b = GraphBuilder()
    b.layer("body")
    x = b.source("x", 8, StorageKind.INPUT)
    (y,) = b.op("y", (x,), (100,))
    (g,) = b.op("g", (y,), (4,), phase=Phase.BACKWARD)
    b.accumulate("w", g)
    graph = b.build(outputs=(y,))
    solution = SOLVERS["uniform"](Problem(graph=graph, index=GraphIndex(graph), budget_bytes=1))
    assert solution.status == NOT_NEEDED
    assert "no repeated layers" in solution.notes[0]


def test_the_k_th_layer_runs_beside_the_collective_before_it() -> None:
    solution = solve("overlap-collective", 60)
    found = [w for w in windows(GRAPH, solution.items, resolve(GRAPH, solution.items)) if w.recompute_ns]
    copies = [i for i, item in enumerate(solution.items) if item.replica]
    inside = [i for i in copies if any(w.launch < i < w.wait for w in found)]
    assert len(inside) > len(copies) // 2


@pytest.mark.parametrize(("algo", "kind"), [("overlap-bubble", "bubble"), ("overlap-p2p", "forward")])
def test_given_windows_take_the_last_layers_that_fit(algo: str, kind: str) -> None:
    layer_ns = sum(GRAPH.ops[i.op].time_ns for i in solve("block:1").items if i.replica)
    given = (GivenWindow(kind=kind, room_ns=2 * layer_ns),)
    solution = solve(algo, 60, windows=given)
    first_backward = next(i for i, item in enumerate(solution.items) if GRAPH.ops[item.op].phase is not Phase.FORWARD)
    early = [item for item in solution.items[:first_backward] if item.replica]
    assert {INDEX.op_layer[item.op] for item in early}
    assert sum(GRAPH.ops[item.op].time_ns for item in early) <= 2 * layer_ns
    other = "forward" if kind == "bubble" else "bubble"
    unused = solve(algo, 60, windows=(GivenWindow(kind=other, room_ns=2 * layer_ns),))
    position = next(i for i, item in enumerate(unused.items) if GRAPH.ops[item.op].phase is not Phase.FORWARD)
    assert not any(item.replica for item in unused.items[:position])


def test_modules_of_a_gpt_layer() -> None:
    graph = files.load(SAMPLE, CostGraph)
    facts = analysis_of(GraphIndex(graph)).whole
    kinds = {name: [graph.ops[op].kind for op in find(facts, 5)] for name, find in MODULES.items()}
    assert kinds["layernorm"] == ["aten.native_layer_norm"] * 2
    assert kinds["mlp"] == ["aten.addmm", "aten.gelu", "aten.mm"]
    assert kinds["moe"] == kinds["moe_act"] == []


def test_selective_recomputes_the_modules_that_are_named() -> None:
    graph = files.load(SAMPLE, CostGraph)
    problem = Problem(graph=graph, index=GraphIndex(graph), budget_bytes=1 << 50)
    found = {}
    for setting in ("", ":core_attn", ":layernorm", ":layernorm,mlp"):
        items = solver(f"selective{setting}")(problem).items
        kinds = {graph.ops[item.op].kind for item in items if item.replica}
        found[setting] = kinds - {"aten.view"}
    assert found[""] == found[":core_attn"]
    assert "attention" in found[""]
    assert found[":layernorm"] == {"aten.native_layer_norm"}
    assert {"aten.gelu", "aten.native_layer_norm"} <= found[":layernorm,mlp"]
    assert "no experts" in str(solver("selective:moe")(problem).notes)
