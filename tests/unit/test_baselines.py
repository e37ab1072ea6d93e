"""Baselines: which ops run again under `none`, `full` and `selective`, and where."""

from __future__ import annotations

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.replay import STATE_BYTES
from lynx_plan.check import check_order
from lynx_plan.model.graph import CostGraph, Phase, StorageKind
from lynx_plan.solve.base import NOT_NEEDED, Problem, Solution
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.registry import SOLVERS
from lynx_plan.solve.score import score
from tests.unit.builders import GraphBuilder, Sizes, chain_graph, megatron_graph


def solve(graph: CostGraph, algo: str) -> Solution:
    solution = SOLVERS[algo](Problem(graph=graph, index=GraphIndex(graph), budget_bytes=1))
    check_order(graph, solution.items, budget_bytes=None)
    return solution


def copies(graph: CostGraph, solution: Solution, layer: int) -> list[str]:
    ops = set(graph.layers[layer].ops)
    return [graph.ops[item.op].name for item in solution.items if item.replica and item.op in ops]


def test_none_recomputes_nothing() -> None:
    solution = solve(megatron_graph(2), "none")
    assert not any(item.replica for item in solution.items)
    assert solution.status == NOT_NEEDED


def test_full_runs_each_layer_again_but_not_what_backward_does_not_need() -> None:
    graph = megatron_graph(2)
    solution = solve(graph, "full")
    again = ["ln1", "qkv", "q", "k", "v", "attention", "proj", "reduce1", "reduce1_wait", "add1", "ln2", "up", "gelu"]
    assert sorted(copies(graph, solution, 1)) == sorted(again)
    assert copies(graph, solution, 1) == copies(graph, solution, 2)
    assert copies(graph, solution, 0) == copies(graph, solution, 3) == []


def test_full_runs_the_block_at_the_start_of_the_layers_backward() -> None:
    graph = megatron_graph(2)
    names = [graph.ops[i.op].name + "'" * i.replica for i in solve(graph, "full").items]
    first = names.index("ln1'")
    assert "down_dgrad" not in names[:first]
    assert names[names.index("gelu'") + 1] == "down_dgrad"


def test_full_keeps_one_activation_per_layer_and_the_states_of_random_ops() -> None:
    size = Sizes(hidden=1 << 20, tp=2)
    peaks = [score(g, solve(g, "full").items).peak_bytes for g in (megatron_graph(n, size) for n in (3, 4))]
    assert peaks[1] - peaks[0] == size.hidden
    random = [megatron_graph(n, Sizes(dropout=True)) for n in (3, 4)]
    peaks = [score(g, solve(g, "full").items).peak_bytes for g in random]
    assert peaks[1] - peaks[0] == size.hidden + 2 * STATE_BYTES["cpu"]
    for graph in random:
        again = [graph.ops[i.op] for i in solve(graph, "full").items if i.replica]
        assert any(op.rng for op in again)


def test_full_of_a_chain_keeps_everything_that_crosses_a_layer() -> None:
    graph = chain_graph(4)
    solution = solve(graph, "full")
    assert not any(item.replica for item in solution.items)
    assert "no repeated layers" in solution.notes[0]


def test_selective_runs_the_attention_op_again_on_demand() -> None:
    graph = megatron_graph(2)
    solution = solve(graph, "selective")
    assert copies(graph, solution, 1) == copies(graph, solution, 2) == ["attention"]
    names = [graph.ops[i.op].name + "'" * i.replica for i in solution.items]
    assert names[names.index("attention'") + 1] == "attention_bw"


def unfused() -> CostGraph:
    b = GraphBuilder()
    x, w = b.source("x", 8, StorageKind.INPUT), b.source("w", 8)
    b.layer("layers.0")
    (qkv,) = b.op("qkv", (x, w), (24,))
    (q,) = b.op("contiguous", (qkv,), (8,), kind="aten.clone")
    (s,) = b.op("scores", (q, qkv), (64,), kind="aten.bmm")
    (m,) = b.op("scale", (s,), (64,), kind="aten.mul")
    (p,) = b.op("softmax", (m,), (64,), kind="aten._softmax")
    (o,) = b.op("context", (p, qkv), (8,), kind="aten.bmm")
    (y,) = b.op("proj", (o, w), (8,))
    (loss,) = b.op("loss", (y,), (4,), kind="aten.sum")
    (dy,) = b.op("proj_bw", (loss, o), (8,), phase=Phase.BACKWARD)
    (ds,) = b.op("attention_bw", (dy, q, p, s), (64,), phase=Phase.BACKWARD)
    (dw,) = b.op("wgrad", (ds, x), (8,), phase=Phase.WEIGHT_GRADIENT)
    b.accumulate("w", dw)
    return b.build(outputs=(loss,))


def test_selective_of_unfused_attention_runs_the_scores_and_what_follows_again_but_keeps_the_context() -> None:
    graph = unfused()
    again = {graph.ops[item.op].name for item in solve(graph, "selective").items if item.replica}
    assert again == {"contiguous", "scores", "scale", "softmax"}


def test_selective_without_attention_says_so() -> None:
    solution = solve(chain_graph(3), "selective")
    assert solution.status == NOT_NEEDED
    assert "no attention" in solution.notes[0]


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("aten.mm", {}, True),
        ("aten.native_dropout", {"rng": True}, False),  # its state is larger than what it makes
        ("aten.topk", {}, False),
        ("aten.argmax.default", {}, False),
        ("lynx.update_buffer", {"effect": True}, False),
    ],
)
def test_what_may_run_again(kind: str, fields: dict[str, bool], expected: bool) -> None:
    b = GraphBuilder()
    b.layer("layers.0")
    (y,) = b.op("f", (b.source("x", 8),), (8,), kind=kind, **fields)
    b.op("b", (y,), (8,), phase=Phase.BACKWARD)
    assert Candidates(GraphIndex(b.build())).recomputable[0] is expected


def test_an_op_whose_storage_another_writes_in_place_does_not_run_again() -> None:
    b = GraphBuilder()
    b.layer("layers.0")
    (y,) = b.op("f", (b.source("x", 8),), (8,))
    (z,) = b.op("add_", (y,), (8,), alias=True)
    b.op("b", (z,), (8,), phase=Phase.BACKWARD)
    assert not any(Candidates(GraphIndex(b.build())).recomputable)
