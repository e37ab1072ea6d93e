"""Layer classes and the structure digest: what splits a class, what does not, what a plan binds to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lynx_plan.analyze.classes import class_name, layer_classes, op_lines, structure_digest
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import CostGraph, Phase, StorageKind
from tests.unit.builders import GraphBuilder, Sizes, megatron_graph, op_named


def members(graph: CostGraph, *, priced: bool = False) -> list[tuple[str, tuple[int, ...]]]:
    return [(found.name, found.layers) for found in layer_classes(GraphIndex(graph), priced=priced)]


def changed(graph: CostGraph, op_name: str, **fields: Any) -> CostGraph:
    """The graph with other fields of one op."""
    op = op_named(graph, op_name)
    return replace(graph, ops=(*graph.ops[:op], replace(graph.ops[op], **fields), *graph.ops[op + 1 :]))


def changed_output(graph: CostGraph, op_name: str, **fields: Any) -> CostGraph:
    """The graph with other fields of one op's first output."""
    tensor = graph.ops[op_named(graph, op_name)].outputs[0]
    tensors = graph.tensors
    return replace(graph, tensors=(*tensors[:tensor], replace(tensors[tensor], **fields), *tensors[tensor + 1 :]))


@pytest.mark.parametrize("priced", [False, True])
def test_all_repeated_layers_are_one_class_first_and_last_included(priced: bool) -> None:
    graph = megatron_graph(4)
    expected = [("embedding", (0,)), ("layers.0-3", (1, 2, 3, 4)), ("head", (5,))]
    assert members(graph, priced=priced) == expected


STRUCTURAL = [
    {"kind": "aten.silu"},
    {"attributes": "approximate='tanh'"},
    {"rng": True},
    {"effect": True},
    {"phase": Phase.BACKWARD},
]


@pytest.mark.parametrize("fields", STRUCTURAL, ids=str)
def test_another_op_splits_the_class_and_the_digest(fields: dict[str, Any]) -> None:
    graph = megatron_graph(3)
    other = changed(graph, "layers.1.gelu", **fields)
    assert members(other)[1:3] == [("layers.0,2", (1, 3)), ("layers.1", (2,))]
    assert structure_digest(other) != structure_digest(graph)


@pytest.mark.parametrize("fields", [{"dtype": "bfloat16"}, {"shape": (7,)}, {"stride": (2,)}, {"storage": 0}], ids=str)
def test_another_tensor_splits_the_class_and_the_digest(fields: dict[str, Any]) -> None:
    graph = megatron_graph(3)
    other = changed_output(graph, "layers.1.gelu", **fields)
    assert members(other)[1] == ("layers.0,2", (1, 3))
    assert structure_digest(other) != structure_digest(graph)


@pytest.mark.parametrize("name", ["group_size", "comm_bytes"])
def test_another_collective_splits_the_class_and_the_digest(name: str) -> None:
    graph = megatron_graph(3)
    other = changed(graph, "layers.1.up_reduce", **{name: 12345})
    assert members(other)[1] == ("layers.0,2", (1, 3))
    assert structure_digest(other) != structure_digest(graph)


def test_other_wiring_of_the_same_ops_splits_the_class() -> None:
    graph = megatron_graph(3)
    add = graph.ops[op_named(graph, "layers.1.add2")]
    other = changed(graph, "layers.1.add2", inputs=tuple(reversed(add.inputs)))
    assert members(other)[1] == ("layers.0,2", (1, 3))
    assert structure_digest(other) != structure_digest(graph)


def test_a_value_that_is_read_outside_only_in_one_layer_splits_the_class() -> None:
    graph = megatron_graph(3)
    gelu = graph.ops[op_named(graph, "layers.1.gelu")].outputs[0]
    loss = graph.ops[op_named(graph, "head.loss")]
    other = changed(graph, "head.loss", inputs=(*loss.inputs, gelu))
    assert members(other)[1] == ("layers.0,2", (1, 3))


@pytest.mark.parametrize("name", ["time_ns", "comm_ns", "steal_ns", "flops", "bytes"])
def test_costs_split_priced_classes_only_and_never_the_digest(name: str) -> None:
    graph = megatron_graph(3)
    other = changed(graph, "layers.1.gelu", **{name: 987})
    assert members(other) == members(graph)
    assert members(other, priced=True)[1] == ("layers.0,2", (1, 3))
    assert structure_digest(other) == structure_digest(graph)


def test_names_sources_machine_and_torch_version_do_not_count() -> None:
    graph = megatron_graph(3)
    other = changed(graph, "layers.1.gelu", name="x", module="y", source="z:1", spread_ns=3, cost_source="s")
    other = replace(other, torch_version="9", machine=replace(graph.machine, name="m"), threads=7, notes=("n",))
    assert structure_digest(other) == structure_digest(graph)
    assert members(other) == members(graph)


def test_mesh_parameters_storages_and_outputs_count_in_the_digest() -> None:
    graph = megatron_graph(1)
    storage = replace(graph.storages[-1], bytes=1)
    others = [
        replace(graph, mesh=(("tp", 4),)),
        replace(graph, static=replace(graph.static, parameters_bytes=1)),
        replace(graph, storages=(*graph.storages[:-1], storage)),
        replace(graph, outputs=()),
        changed(graph, "head.w_logits_accumulate", parameter="other"),
        megatron_graph(2),
        megatron_graph(1, Sizes(hidden=2 << 20)),
    ]
    digests = {structure_digest(other) for other in [graph, *others]}
    assert len(digests) == len(others) + 1


def test_a_value_that_every_layer_reads_does_not_split_the_class() -> None:
    b = GraphBuilder()
    x = b.source("x", 64, StorageKind.INPUT)
    b.layer("rotary")
    (table,) = b.op("table", (x,), (32,))
    for i in range(3):
        b.layer(f"blocks.{i}.block")
        (x,) = b.op("mix", (x, table), (64,))
    b.layer("rotary_user")
    b.op("end", (x,), (4,))
    found = members(b.build())
    assert found[1:3] == [("blocks.0.block", (1,)), ("blocks.1.block and 1 like it", (2, 3))]


def test_op_lines_read_like_this() -> None:
    graph = megatron_graph(2, Sizes(hidden=4096, weight=1024))
    lines = op_lines(GraphIndex(graph), 2)
    assert lines[0] == (
        "aten.native_layer_norm forward compute (<0%0 float32[1024], parameter%1 float32[256])"
        " -> (float32[1024] %2 4096B, float32[16] %3 64B)"
    )
    assert lines[7] == (
        "_c10d_functional.all_reduce forward collective [sum, tp] tpx2:4096 (#6) -> (float32[1024] %10 4096B)"
    )
    assert lines[8] == "_c10d_functional.wait_tensor forward wait (#7) -> (float32[1024] %10)"
    assert lines[16] == "aten.add forward compute (#9, #15) -> (float32[1024] %21 4096B >fb)"
    assert lines[-1] == "aten.add backward compute (#28, #39) -> (float32[1024] %43 4096B <b)"


def test_strides_show_only_where_they_are_not_the_contiguous_ones() -> None:
    graph = megatron_graph(1)
    cases = (((2, 3), (3, 1), "[2,3] "), ((2, 3), (1, 2), "[2,3]@[1,2] "), ((1, 3), (9, 1), "[1,3] "))
    for shape, stride, text in cases:
        other = changed_output(graph, "layers.0.gelu", shape=shape, stride=stride)
        assert f"-> (float32{text}" in op_lines(GraphIndex(other), 1)[12]


def test_class_names() -> None:
    assert class_name(["head"]) == "head"
    assert class_name(["layers.0", "layers.1", "layers.5"]) == "layers.0-1,5"
    assert class_name(["a", "b"]) == "a and 1 like it"
    assert class_name(["layers.1", "blocks.2"]) == "layers.1 and 1 like it"
    assert class_name([f"h.{i}" for i in range(0, 20, 2)]) == "h.0 and 9 like it"
