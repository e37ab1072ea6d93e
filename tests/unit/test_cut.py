"""Cutting a graph into stages: ops and bytes add up, what crosses is listed once per receiver, ties, memory by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from lynx_plan.analyze.cut import StageGraph, cut
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.layer_static import LayerStatic
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Phase, Role, StorageKind
from lynx_plan.simulate.memory import memory_curve
from tests.unit.builders import GraphBuilder, chain_graph, megatron_graph, op_named, plain_order
from tests.unit.random_orders import random_graph

SEEDS = range(60)
BACKWARD, WEIGHTS = Phase.BACKWARD, Phase.WEIGHT_GRADIENT


def random_cut(seed: int) -> tuple[CostGraph, tuple[int, ...]]:
    rng = random.Random(seed)
    layers = rng.randrange(2, 7)
    graph = random_graph(seed, ops=6 * layers, layers=layers)
    inner = rng.sample(range(1, layers), rng.randrange(1, layers))
    return graph, (0, *sorted(inner), layers)


def crossings(graph: CostGraph, bounds: tuple[int, ...]) -> set[tuple[int, int, int]]:
    """(tensor, sender, receiver) of every value read in another stage than the one that makes it, static ones apart."""
    stage_of = {op: s for s, (a, b) in enumerate(pairwise(bounds)) for layer in graph.layers[a:b] for op in layer.ops}
    reads = [(graph.tensors[t], stage_of[op.id]) for op in graph.ops for t in op.inputs]
    return {
        (tensor.id, stage_of[tensor.producer], stage)
        for tensor, stage in reads
        if tensor.producer >= 0
        and stage_of[tensor.producer] != stage
        and graph.storages[tensor.storage].kind is StorageKind.ACTIVATION
    }


def peak(stage: StageGraph, starts: tuple[int, ...] = (0,)) -> int:
    items = plain_order(stage.graph)
    return memory_curve(stage.graph, items, resolve(stage.graph, items, starts)).peak_bytes


@pytest.mark.parametrize("graph", [chain_graph(), megatron_graph(3), random_graph(1), random_graph(2)])
def test_one_stage_is_the_whole_graph(graph: CostGraph) -> None:
    (stage,) = cut(graph, (0, len(graph.layers)))
    assert stage.graph == graph
    assert not stage.received + stage.sent + stage.gradients_received + stage.gradients_sent


@pytest.mark.parametrize("seed", SEEDS)
def test_every_op_is_in_one_stage_with_what_it_reads(seed: int) -> None:
    graph, bounds = random_cut(seed)
    stages = cut(graph, bounds)
    assert sorted(op for stage in stages for op in stage.ops) == list(range(len(graph.ops)))
    for stage in stages:
        index = GraphIndex(stage.graph)
        assert [layer.name for layer in stage.graph.layers] == [graph.layers[i].name for i in stage.layers]
        for op, whole in zip(stage.graph.ops, stage.ops, strict=True):
            original = graph.ops[whole]
            assert replace(op, id=whole, inputs=original.inputs, outputs=original.outputs) == original
            assert tuple(stage.tensors[t] for t in op.inputs) == original.inputs
            assert tuple(stage.tensors[t] for t in op.outputs) == original.outputs
            assert stage.layers[index.op_layer[op.id]] == GraphIndex(graph).op_layer[whole]
            assert stage.op_of(whole) == op.id


@pytest.mark.parametrize("seed", SEEDS)
def test_what_crosses_is_listed_once_per_receiver(seed: int) -> None:
    graph, bounds = random_cut(seed)
    stages = cut(graph, bounds)
    received = [t for stage in stages for t in stage.received + stage.gradients_received]
    sent = [t for stage in stages for t in stage.sent + stage.gradients_sent]
    listed = [(tensor, t.receiver) for t in received for tensor in (t.tensor, *t.views)]
    assert len(listed) == len(set(listed))
    assert set(listed) == {(tensor, receiver) for tensor, _, receiver in crossings(graph, bounds)}
    assert sorted(sent, key=str) == sorted(received, key=str)
    for stage in stages:
        assert all(t.receiver == stage.stage > t.sender for t in stage.received)
        assert all(t.receiver == stage.stage < t.sender for t in stage.gradients_received)
        for t in stage.received + stage.gradients_received:
            here = stage.graph.tensors[stage.tensor_of(t.tensor)]
            storage = stage.graph.storages[here.storage]
            assert (here.producer, storage.kind, storage.bytes) == (-1, StorageKind.ACTIVATION, t.bytes)


def test_aliases_stay_aliases() -> None:
    """Tensors of one stage share a storage there if they do in the whole, received ones apart."""
    for seed in SEEDS:
        graph, bounds = random_cut(seed)
        for stage in cut(graph, bounds):
            for op in stage.graph.ops:
                if op.role in (Role.VIEW, Role.WAIT):
                    assert stage.graph.tensors[op.outputs[0]].storage == stage.graph.tensors[op.inputs[0]].storage


def test_layers_of_uneven_width() -> None:
    graph = megatron_graph(5)
    stages = cut(graph, (0, 1, 4, 7))
    assert [[layer.name for layer in stage.graph.layers] for stage in stages] == [
        ["embedding"],
        ["layers.0", "layers.1", "layers.2"],
        ["layers.3", "layers.4", "head"],
    ]
    assert [len(stage.ops) for stage in stages] == [
        sum(len(layer.ops) for layer in graph.layers[a:b]) for a, b in ((0, 1), (1, 4), (4, 7))
    ]
    assert [[(t.name, t.bytes) for t in stage.sent] for stage in stages] == [
        [("embed", 1 << 20)],
        [("add2", 1 << 20)],
        [],
    ]
    assert [[(t.name, t.sender) for t in stage.gradients_received] for stage in stages] == [
        [("add1_bw", 1)],
        [("add1_bw", 2)],
        [],
    ]
    assert sum(stage.graph.static.parameters_bytes for stage in stages) == graph.static.parameters_bytes


def test_memory_of_a_chain_by_hand() -> None:
    """Stage 0 holds f0 f1 b1 b0: at b1 the gradient, a0, b1's own, and the a1 that it sent. Without the latter where
    forward and backward are parts of their own, as a pipeline runs them. Stage 1 at b3: a1 to a3, and b3's own."""
    first, second = cut(chain_graph(4, size=100), (0, 2, 4))
    assert (peak(first), peak(first, (0, 2))) == (400, 300)
    assert (peak(second), peak(second, (0, 2))) == (400, 400)
    assert [second.graph.tensors[t].name for t in second.graph.outputs] == ["f3", "b2"]
    assert [first.graph.tensors[t].name for t in first.graph.outputs] == ["f1"]


def test_what_backward_keeps_is_no_output() -> None:
    """f0's value is sent, and its own stage's backward reads it anyway."""
    b = GraphBuilder()
    b.layer("layers.0")
    x = b.source("x", 40, StorageKind.INPUT)
    (y,) = b.op("f0", (x,), (40,))
    b.layer("layers.1")
    (z,) = b.op("f1", (y,), (40,))
    (g,) = b.op("b1", (z, y), (40,), phase=BACKWARD)
    b.layer("layers.0")
    b.op("b0", (g, y), (40,), phase=BACKWARD)
    first, second = cut(b.build(outputs=(z,)), (0, 1, 2))
    assert first.graph.outputs == ()
    assert [(t.name, t.receiver) for t in first.sent] == [("f0", 1)]
    assert len(second.received) == 1


def encoder_decoder(decoders: int) -> CostGraph:
    """Two encoder layers and `decoders` that all read the encoder's output, forward and backward; its gradients are
    summed from one decoder to the one before."""
    b = GraphBuilder()
    source, target = b.source("source", 400, StorageKind.INPUT), b.source("target", 200, StorageKind.INPUT)
    b.layer("encoder.0")
    (e0,) = b.op("f", (source,), (400,))
    b.layer("encoder.1")
    (memory,) = b.op("f", (e0,), (400,))
    y = target
    inputs = []
    for i in range(decoders):
        b.layer(f"decoder.{i}")
        inputs.append(y)
        (y,) = b.op("cross", (y, memory), (200,))
    dy = y
    dm = None
    for i in reversed(range(decoders)):
        b.layer(f"decoder.{i}")
        dy, part = b.op("cross_bw", (dy, inputs[i], memory), (200, 400), phase=BACKWARD)
        dm = part if dm is None else b.op("sum", (dm, part), (400,), phase=BACKWARD)[0]
    assert dm is not None
    b.layer("encoder.1")
    (de,) = b.op("f_bw", (dm, e0), (400,), phase=BACKWARD)
    b.layer("encoder.0")
    b.op("f_bw", (de, source), (400,), phase=BACKWARD)
    return b.build(outputs=(y,))


def test_encoder_output_is_sent_once_to_each_stage_that_reads_it() -> None:
    graph = encoder_decoder(5)
    stages = cut(graph, (0, 1, 2, 4, 7))
    assert [[(t.name, t.receiver, t.bytes) for t in stage.sent] for stage in stages] == [
        [("f", 1, 400)],
        [("f", 2, 400), ("f", 3, 400)],
        [("cross", 3, 200)],
        [],
    ]
    assert [sorted((t.name, t.sender, t.bytes) for t in stage.gradients_received) for stage in stages] == [
        [("f_bw", 1, 400)],
        [("sum", 2, 400)],
        [("cross_bw", 3, 200), ("sum", 3, 400)],
        [],
    ]
    assert [stage.graph.static.inputs_bytes for stage in stages] == [400, 0, 200, 0]


def tied_graph() -> CostGraph:
    """The embedding's table is the head's weight; the head's part of its gradient goes back to the embedding."""
    b = GraphBuilder()
    tokens, table = b.source("tokens", 8, StorageKind.INPUT), b.source("embedding.table", 1000)
    other = b.source("layers.0.w", 100)
    b.layer("embedding")
    (x,) = b.op("embed", (tokens, table), (80,))
    b.layer("layers.0")
    (y,) = b.op("up", (x, other), (80,))
    b.layer("head")
    turned = b.view("t", table, 1000)
    (z,) = b.op("logits", (y, turned), (40,))
    (dy,) = b.op("dgrad", (z, turned), (80,), phase=BACKWARD)
    (dw,) = b.op("wgrad", (z, y), (1000,), phase=WEIGHTS)
    b.layer("layers.0")
    (dx,) = b.op("up_bw", (dy, other), (80,), phase=BACKWARD)
    b.accumulate("layers.0.w", b.op("up_wgrad", (dy, x), (100,), phase=WEIGHTS)[0])
    b.layer("embedding")
    (dt,) = b.op("embed_wgrad", (dx, tokens), (1000,), phase=WEIGHTS)
    b.accumulate("embedding.table", b.op("sum", (dt, dw), (1000,), phase=WEIGHTS)[0])
    graph = b.build(outputs=(z,), optimizer_ns=1100)
    return replace(graph, static=replace(graph.static, optimizer_bytes=2201))


def test_ties_are_listed_and_held_by_both() -> None:
    stages = cut(tied_graph(), (0, 1, 2, 3))
    ties = [[(tie.parameter, tie.stages) for tie in stage.tied] for stage in stages]
    assert ties == [[("embedding.table", (0, 2))], [], [("embedding.table", (0, 2))]]
    assert [stage.graph.static.parameters_bytes for stage in stages] == [1000, 100, 1000]
    assert [stage.graph.static.gradients_bytes for stage in stages] == [1000, 100, 1000]
    assert [stage.graph.static.optimizer_bytes for stage in stages] == [2000, 201, 2000]
    assert [stage.graph.optimizer_ns for stage in stages] == [1000, 100, 1000]
    assert [(t.name, t.sender) for t in stages[0].gradients_received] == [("wgrad", 2), ("up_bw", 1)]


def test_a_view_of_a_weight_is_held_not_sent() -> None:
    """A stage that reads a view of a weight which another stage made holds the weight."""
    b = GraphBuilder()
    b.layer("embedding")
    x, weight = b.source("x", 40, StorageKind.INPUT), b.source("w", 400)
    turned = b.view("t", weight, 400)
    (y,) = b.op("f", (x, turned), (40,))
    b.layer("head")
    b.op("g", (y, turned), (40,))
    stages = cut(b.build(), (0, 1, 2))
    assert [t.name for t in stages[0].sent] == ["f"]
    assert [tie.parameter for tie in stages[1].tied] == ["w"]
    held = stages[1].graph.tensors[stages[1].tensor_of(turned)]
    assert stages[1].graph.storages[held.storage].kind is StorageKind.PARAMETER
    assert stages[1].graph.static.parameters_bytes == 400


def test_views_of_all_of_a_value_come_with_it_and_parts_by_themselves() -> None:
    b = GraphBuilder()
    b.layer("layers.0")
    (y,) = b.op("f", (b.source("x", 40, StorageKind.INPUT),), (40,))
    whole, part = b.view("whole", y, 40), b.view("part", y, 8)
    b.layer("layers.1")
    b.op("g", (y, whole, part), (40,))
    _, second = cut(b.build(), (0, 1, 2))
    assert [(t.tensor, t.views, t.bytes) for t in second.received] == [(y, (whole,), 40), (part, (), 8)]
    storages = [second.graph.tensors[second.tensor_of(t)].storage for t in (y, whole, part)]
    assert storages[0] == storages[1] != storages[2]


def test_static_memory_adds_up_in_whole_bytes() -> None:
    graph = megatron_graph(7)
    static = replace(
        graph.static,
        parameters_bytes=graph.static.parameters_bytes // 7 + 3,
        optimizer_bytes=999_983,
        gradients_bytes=7,
    )
    graph = replace(graph, static=static, optimizer_ns=12_345)
    facts = LayerStatic(GraphIndex(graph))
    for bounds in ((0, 9), (0, 4, 9), (0, 1, 2, 3, 9), tuple(range(10))):
        parts = [facts.of(a, b) for a, b in pairwise(bounds)]
        for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "buffers_bytes"):
            assert sum(getattr(part, name) for part in parts) == getattr(static, name)
        assert sum(facts.optimizer_ns_of(a, b) for a, b in pairwise(bounds)) == 12_345
        assert [stage.graph.static for stage in cut(graph, bounds, static=facts)] == parts


def test_frozen_parameters_have_no_gradients_or_states() -> None:
    b = GraphBuilder()
    b.layer("layers.0")
    x, frozen = b.source("x", 40, StorageKind.INPUT), b.source("frozen", 300)
    (y,) = b.op("f", (x, frozen), (40,))
    b.layer("layers.1")
    trained = b.source("trained", 100)
    (z,) = b.op("g", (y, trained), (40,))
    b.accumulate("trained", b.op("w", (z, y), (100,), phase=WEIGHTS)[0])
    graph = b.build()
    graph = replace(graph, static=replace(graph.static, gradients_bytes=100, optimizer_bytes=200))
    first, second = cut(graph, (0, 1, 2))
    parts = [
        (s.parameters_bytes, s.gradients_bytes, s.optimizer_bytes) for s in (first.graph.static, second.graph.static)
    ]
    assert parts == [(300, 0, 0), (100, 100, 200)]


def test_the_stage_that_accumulates_a_gradient_holds_the_parameter() -> None:
    b = GraphBuilder()
    b.layer("layers.0")
    x, weight = b.source("x", 40, StorageKind.INPUT), b.source("w", 100)
    (y,) = b.op("f", (x,), (40,))
    b.layer("layers.1")
    (z,) = b.op("g", (y, weight), (40,))
    (dw,) = b.op("wgrad", (z, y), (100,), phase=WEIGHTS)
    b.layer("layers.0")
    b.accumulate("w", dw)
    stages = cut(b.build(), (0, 1, 2))
    assert [stage.graph.static.parameters_bytes for stage in stages] == [100, 100]
    assert [tie.stages for stage in stages for tie in stage.tied] == [(0, 1), (0, 1)]


def test_helper_layers_without_ops_are_fine() -> None:
    b = GraphBuilder()
    b.layer("empty")
    b.layer("layers.0")
    b.op("f", (b.source("x", 40, StorageKind.INPUT),), (40,))
    first, second = cut(b.build(), (0, 1, 2))
    assert (first.ops, second.ops) == ((), (0,))
    GraphIndex(first.graph)


def test_values_against_the_direction_are_refused() -> None:
    """A backward value of an earlier layer that a later one reads would come too late."""
    b = GraphBuilder()
    b.layer("layers.0")
    (y,) = b.op("f", (b.source("x", 40, StorageKind.INPUT),), (40,))
    b.layer("layers.1")
    (z,) = b.op("g", (y,), (40,))
    b.layer("layers.0")
    (dy,) = b.op("f_bw", (z,), (40,), phase=BACKWARD)
    b.layer("layers.1")
    b.op("late", (dy,), (40,), phase=BACKWARD)
    with pytest.raises(LynxError, match=r"cannot cut between layers\.0 and layers\.1: 'late'"):
        cut(b.build(), (0, 1, 2))


@pytest.mark.parametrize("bounds", [(), (0,), (0, 2), (1, 6), (0, 3, 3, 6), (0, 4, 2, 6), (0, 7)])
def test_wrong_bounds_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(LynxError, match="does not cut 6 layers"):
        cut(megatron_graph(4), bounds)


def test_reads_across_layers_of_one_stage_are_no_transfers() -> None:
    graph = megatron_graph(4)
    stage = cut(graph, (0, 3, 6))[0]
    inner = graph.ops[op_named(graph, "layers.0.add2")].outputs[0]
    assert inner in stage.tensors
    assert inner not in [t.tensor for t in stage.sent]
