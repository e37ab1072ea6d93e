"""Large layers are planned in pieces: every op in exactly one, cuts where little crosses, and planning stays fast."""

from __future__ import annotations

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_order
from lynx_plan.model.graph import CostGraph, Phase, StorageKind
from lynx_plan.simulate.outcome import predict
from lynx_plan.solve.base import Problem
from lynx_plan.solve.pieces import MOST, PIECE, with_pieces
from lynx_plan.solve.registry import SOLVERS
from tests.unit.builders import GraphBuilder, megatron_graph, plain_order


def long_chain(length: int, narrow: int = 10) -> CostGraph:
    """One layer, a chain; every `narrow`th value is small."""
    b = GraphBuilder()
    values = [b.source("x", 100, StorageKind.INPUT)]
    b.layer("model")
    for i in range(length):
        values += b.op(f"f{i}", (values[-1],), (400 if i % narrow == narrow - 1 else 4000,), time_ns=1000)
    gradient = loss = values[-1]
    for i in reversed(range(length)):
        (gradient,) = b.op(f"b{i}", (gradient, values[i]), (8,), phase=Phase.BACKWARD, time_ns=2000)
    b.accumulate("w", gradient)
    return b.build(outputs=(loss,))


def test_small_layers_stay_whole() -> None:
    for graph in (megatron_graph(3), long_chain(MOST)):
        index = GraphIndex(graph)
        assert with_pieces(index) is index


def test_pieces_hold_every_op_once_and_are_cut_where_little_crosses() -> None:
    graph = long_chain(100)
    index = with_pieces(GraphIndex(graph))
    layers = index.graph.layers
    assert [layer.name for layer in layers] == [f"model/{n}" for n in range(-(-99 // PIECE))]
    assert sorted(op for layer in layers for op in layer.ops) == list(range(len(graph.ops)))
    for layer in layers[1:]:
        first = graph.ops[layer.ops[0]]
        assert first.name.startswith("f")
        assert int(first.name[1:]) % 10 == 0  # it reads a small value
    for layer in layers:
        forward = {graph.ops[op].name[1:] for op in layer.ops if graph.ops[op].phase is Phase.FORWARD}
        backward = {graph.ops[op].name[1:] for op in layer.ops if graph.ops[op].phase is Phase.BACKWARD}
        # b5 reads the value of f4, and is in its piece; b0 reads no value, and follows the gradient.
        assert {str(int(name) - 1) for name in backward if name != "0"} <= forward


def test_a_model_of_one_large_layer_is_planned_legally_and_under_half_its_memory() -> None:
    graph = long_chain(150)
    index = GraphIndex(graph)
    budget = graph.static.total_bytes + predict(graph, plain_order(graph)).peak_activation_bytes // 2
    solution = SOLVERS["heu"](Problem(graph=graph, index=index, budget_bytes=budget))
    check_order(graph, solution.items, budget_bytes=budget)
