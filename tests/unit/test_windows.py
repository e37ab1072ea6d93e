"""Windows of an order: what runs between each launch and its wait."""

from __future__ import annotations

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.windows import Window, windows
from lynx_plan.model.graph import CostGraph, Phase
from lynx_plan.model.program import Item
from tests.unit.builders import GraphBuilder, Sizes, megatron_graph, op_named, plain_order


def moved(graph: CostGraph, items: tuple[Item, ...], item: Item, before: str) -> tuple[Item, ...]:
    """The order with `item` (new or not) directly before the original of op `before`."""
    rest = [other for other in items if other != item]
    rest.insert(rest.index(Item(op_named(graph, before))), item)
    return tuple(rest)


def by_name(graph: CostGraph, items: tuple[Item, ...]) -> dict[str, Window]:
    return {window.name: window for window in windows(graph, items, resolve(graph, items))}


def test_plain_order_has_empty_windows_named_in_order_of_launch() -> None:
    graph = megatron_graph(1, Sizes(comm_ns=500))
    found = windows(graph, plain_order(graph), resolve(graph, plain_order(graph)))
    assert [window.name for window in found] == ["fw0", "fw1", "bw0", "bw1", "bw2"]
    assert [window.id for window in found] == list(range(5))
    for window in found:
        assert window.wait == window.launch + 1
        assert window.capacity_ns == 500
        assert window.weight_gradient_ns == window.recompute_ns == window.other_ns == 0


def test_a_filled_window_counts_each_sort_of_work() -> None:
    graph = megatron_graph(1, Sizes(matmul_ns=70, pointwise_ns=3))
    items = plain_order(graph)
    for name, replica in (("down_wgrad", 0), ("w_down_accumulate", 0), ("gelu", 1)):
        items = moved(graph, items, Item(op_named(graph, f"layers.0.{name}"), replica), "layers.0.up_reduce_wait")
    found = by_name(graph, items)["bw1"]
    launch = op_named(graph, "layers.0.up_reduce")
    assert (found.layer, graph.layers[1].ops[found.slot]) == (1, launch)
    assert items[found.launch] == Item(launch)
    assert items[found.wait] == Item(op_named(graph, "layers.0.up_reduce_wait"))
    assert (found.weight_gradient_ns, found.recompute_ns, found.other_ns) == (70, 3, 0)
    assert found.phase is Phase.BACKWARD


def test_other_compute_counts_apart_and_overlapping_windows_both_count() -> None:
    b = GraphBuilder()
    b.layer("layer")
    x = b.source("x", 8)
    for name in ("a", "b"):
        b.all_reduce(name, x, 8, Phase.FORWARD, comm_ns=50, launch_ns=1)
    b.op("work", (x,), (8,), time_ns=9)
    graph = b.build()
    items = tuple(map(Item, (0, 2, 4, 1, 3)))  # a, b, work, wait for a, wait for b
    found = by_name(graph, items)
    assert (found["fw0"].other_ns, found["fw1"].other_ns) == (10, 9)  # a's also holds the launch of b
    assert (found["fw0"].wait, found["fw1"].wait) == (3, 4)
    assert found["fw0"].weight_gradient_ns == found["fw0"].recompute_ns == 0


def test_a_recomputed_collective_is_a_window_of_its_own() -> None:
    graph = megatron_graph(1, Sizes(launch_ns=5))
    items = plain_order(graph)
    before = "layers.0.ln2_bw"
    for name in ("proj", "reduce1", "reduce1_wait", "add1"):
        items = moved(graph, items, Item(op_named(graph, f"layers.0.{name}"), 1), before)
    found = by_name(graph, items)
    assert set(found) == {"fw0", "fw1", "bw0", "bw1", "bw2", "rc0"}
    assert items[found["rc0"].wait] == Item(op_named(graph, "layers.0.reduce1_wait"), 1)
    assert found["rc0"].phase is Phase.FORWARD
    assert found["fw0"].wait == op_named(graph, "layers.0.reduce1_wait")


def test_a_launch_in_another_window_counts_as_its_sort() -> None:
    graph = megatron_graph(1, Sizes(launch_ns=5, pointwise_ns=3, matmul_ns=70))
    items = plain_order(graph)
    for name in ("proj", "reduce1", "reduce1_wait", "add1"):
        items = moved(graph, items, Item(op_named(graph, f"layers.0.{name}"), 1), "layers.0.up_reduce_wait")
    assert by_name(graph, items)["bw1"].recompute_ns == 70 + 5 + 3


def test_a_window_ends_at_its_first_wait() -> None:
    graph = megatron_graph(1)
    items = plain_order(graph)
    for name in ("reduce1_wait", "add1"):
        items = moved(graph, items, Item(op_named(graph, f"layers.0.{name}"), 1), "layers.0.ln2_bw")
    assert by_name(graph, items)["fw0"].wait == op_named(graph, "layers.0.reduce1_wait")


def test_a_collective_without_a_wait_has_the_rest_of_the_order_as_its_window() -> None:
    b = GraphBuilder()
    b.layer("layer")
    x = b.source("x", 8)
    b.all_reduce("a", x, 8, Phase.FORWARD, comm_ns=50)
    b.op("work", (x,), (8,), time_ns=9)
    found = by_name(b.build(), (Item(0), Item(2)))["fw0"]
    assert (found.wait, found.other_ns) == (1, 9)
