"""The graph index: closed-form facts of a chain and of a Megatron-like layer; graphs that do not hang together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item
from tests.unit.builders import chain_graph, megatron_graph, op_named


def test_chain_consumers_layers_and_storages() -> None:
    index = GraphIndex(chain_graph(3))  # x f0 f1 f2 b2 b1 b0 accumulate
    assert index.consumers == ((0, 5), (1, 4), (2, 3), (3,), (4,), (5,), (6,))
    assert index.op_layer == (0, 1, 2, 2, 1, 0, 0)
    assert index.op_slot == (0, 0, 0, 1, 1, 1, 2)
    assert index.storage_op == (-1, 0, 1, 2, 3, 4, 5)
    assert index.storage_tensors == tuple((i,) for i in range(7))


def test_views_and_waits_belong_to_the_storage_of_their_input() -> None:
    graph = megatron_graph(1)
    index = GraphIndex(graph)
    qkv, reduce = op_named(graph, "layers.0.qkv"), op_named(graph, "layers.0.reduce1")
    for op, members in ((qkv, 4), (reduce, 2)):
        storage = graph.tensors[graph.ops[op].outputs[0]].storage
        assert index.storage_op[storage] == op
        assert len(index.storage_tensors[storage]) == members


def test_item_names() -> None:
    graph = megatron_graph(1)
    index = GraphIndex(graph)
    gelu = op_named(graph, "layers.0.gelu")
    assert index.item_name(Item(gelu)) == "layers.0.gelu@forward"
    assert index.item_name(Item(gelu, 2)) == "layers.0.gelu@r2"
    assert index.item_name(Item(op_named(graph, "head.logits_wgrad"), 0, 1)) == "head.logits_wgrad@weight_gradientm+1"


def broken_graphs() -> list[tuple[str, CostGraph]]:
    graph = chain_graph(3)
    ops, tensors, layers = graph.ops, graph.tensors, graph.layers
    return [
        ("/ops/1", replace(graph, ops=(ops[0], replace(ops[1], id=7), *ops[2:]))),
        ("/tensors/0", replace(graph, tensors=(replace(tensors[0], storage=99), *tensors[1:]))),
        ("/ops/0/inputs", replace(graph, ops=(replace(ops[0], inputs=(3,)), *ops[1:]))),
        ("/ops/0/outputs", replace(graph, ops=(replace(ops[0], outputs=(2,)), *ops[1:]))),
        ("/outputs", replace(graph, outputs=(99,))),
        ("/layers/1/ops", replace(graph, layers=(layers[0], replace(layers[1], ops=(0, 1, 4)), layers[2]))),
        ("/ops/4", replace(graph, layers=(layers[0], replace(layers[1], ops=(1,)), layers[2]))),
    ]


@pytest.mark.parametrize(("where", "graph"), broken_graphs(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_graph_that_does_not_hang_together_is_refused_with_its_place(where: str, graph: CostGraph) -> None:
    with pytest.raises(LynxError) as caught:
        GraphIndex(graph)
    assert caught.value.where == where
    assert caught.value.hint
