"""Policies derived from an order: what is kept, what is recomputed, and in which window."""

from __future__ import annotations

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.windows import windows
from lynx_plan.model.graph import CostGraph, Phase
from lynx_plan.model.program import Item
from lynx_plan.report.policies import ON_DEMAND, Policy, local_names, policies
from tests.golden.samples import plain_order, recomputing_order
from tests.unit.builders import GraphBuilder, chain_graph, megatron_graph


def policies_of(graph: CostGraph, order: tuple[Item, ...]) -> tuple[Policy, ...]:
    index = GraphIndex(graph)
    flow = resolve(graph, order)
    return policies(index, order, flow, windows(graph, order, flow))


def test_a_chain_keeps_what_backward_reads() -> None:
    graph = chain_graph(3, size=100)
    rows = policies_of(graph, plain_order(graph))
    kept = {layer: row.kept_bytes for row in rows for layer in row.layers}
    assert kept == {0: 100, 1: 100, 2: 100}
    assert all(row.recomputed == () for row in rows)


def test_a_recomputed_tensor_is_not_kept() -> None:
    graph = chain_graph(3, size=100)
    order = [*plain_order(graph)]
    order.insert(3, Item(1, 1))  # b2 reads the second copy of f1
    kept = {layer: row for row in policies_of(graph, tuple(order)) for layer in row.layers}
    assert kept[1].kept_bytes == 0
    assert [(entry.slot, entry.where) for entry in kept[1].recomputed] == [(0, ON_DEMAND)]
    assert kept[0].kept_bytes == 100


def test_alike_layers_share_a_policy_and_others_do_not() -> None:
    graph = megatron_graph(4)
    order = recomputing_order(graph)
    shared = policies_of(graph, order)
    assert [row.layers for row in shared] == [(0,), (1, 2, 3, 4), (5,)]
    assert [(e.name, e.where) for e in shared[1].recomputed] == [("gelu", ON_DEMAND), ("native_layer_norm", "bw.a")]
    first = next(item for item in order if item.replica and graph.ops[item.op].name == "ln1")
    changed = tuple(item for item in order if item != first)
    assert [row.layers for row in policies_of(graph, changed)] == [(0,), (1, 2, 3), (4,), (5,)]


def test_windows_are_named_within_their_layer() -> None:
    graph = megatron_graph(2)
    order = plain_order(graph)
    found = windows(graph, order, resolve(graph, order))
    names = local_names(found)
    by_layer = {layer: [names[w.id] for w in found if w.layer == layer] for layer in (1, 2, 3)}
    assert by_layer[1] == by_layer[2] == ["fw.a", "fw.b", "bw.a", "bw.b"]
    assert by_layer[3] == ["bw.a"]


def test_a_copy_is_named_after_the_window_that_closes_first() -> None:
    builder = GraphBuilder()
    builder.layer("only")
    x = builder.source("x", 8)
    (y,) = builder.op("y", (x,), (8,))
    (g,) = builder.op("g", (x,), (8,), phase=Phase.BACKWARD)
    first = builder.all_reduce("long", g, 8, Phase.BACKWARD, comm_ns=9)  # ops 2 and 3
    second = builder.all_reduce("short", g, 8, Phase.BACKWARD, comm_ns=9)  # ops 4 and 5
    builder.op("last", (y, first, second), (8,), phase=Phase.BACKWARD)
    order = (Item(0), Item(1), Item(2), Item(4), Item(0, 1), Item(5), Item(3), Item(6))
    (row,) = policies_of(builder.build(), order)
    assert [(entry.name, entry.where) for entry in row.recomputed] == [("mm", "bw.b")]  # named by kind
