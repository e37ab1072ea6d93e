"""Orders from decisions: graph order, windows filled by weight gradients, copies where they are needed or placed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.check import check_order
from lynx_plan.model.graph import CostGraph, Phase, Role, StorageKind
from lynx_plan.model.program import Item
from lynx_plan.solve.order import Decisions, Placement, build_order
from tests.unit.builders import GraphBuilder, megatron_graph
from tests.unit.random_orders import random_graph


def op(graph: CostGraph, name: str) -> int:
    """The id of the only op of that name in layer 1, or of the only one at all."""
    layer = set(graph.layers[min(1, len(graph.layers) - 1)].ops)
    found = [o.id for o in graph.ops if o.name == name]
    return found[0] if len(found) == 1 else next(o for o in found if o in layer)


def order(graph: CostGraph, *placements: Placement) -> list[str]:
    """Names in order; a copy has `'` after its name."""
    items = build_order(GraphIndex(graph), Decisions(placements=placements))
    check_order(graph, items, budget_bytes=None)
    return [graph.ops[item.op].name + "'" * item.replica for item in items]


def backward(names: list[str], graph: CostGraph) -> list[str]:
    return names[sum(o.phase is Phase.FORWARD for o in graph.ops) :]


def test_weight_gradients_fill_the_window_and_the_wait_comes_before_its_first_use() -> None:
    graph = megatron_graph(1)
    names = backward(order(graph), graph)
    window = names[names.index("up_reduce") : names.index("up_reduce_wait") + 2]
    assert window == [
        "up_reduce",
        "down_wgrad",
        "w_down_accumulate",
        "up_wgrad",
        "w_up_accumulate",
        "up_reduce_wait",
        "ln2_bw",
    ]


def test_critical_ops_keep_graph_order() -> None:
    graph = megatron_graph(2)
    critical = [o.id for o in graph.ops if o.phase is Phase.BACKWARD and o.role is Role.COMPUTE]
    items = build_order(GraphIndex(graph), Decisions())
    assert [item.op for item in items if item.op in set(critical)] == critical


def test_an_accumulate_runs_directly_after_the_op_that_makes_its_gradient() -> None:
    graph = megatron_graph(2)
    items = build_order(GraphIndex(graph), Decisions())
    for before, item in pairwise(items):
        record = graph.ops[item.op]
        if record.role is Role.ACCUMULATE:
            assert graph.tensors[record.inputs[0]].producer == before.op


def test_a_weight_gradient_without_a_later_window_stands_where_it_was() -> None:
    graph = megatron_graph(1)
    assert order(graph)[-3:] == ["add1_bw", "embed_wgrad", "table_accumulate"]
    b = GraphBuilder()
    x = b.source("x", 8, StorageKind.INPUT)
    b.layer("layers.0")
    (y,) = b.op("f", (x,), (8,))
    (dy,) = b.op("b", (y,), (8,), phase=Phase.BACKWARD)
    (dw,) = b.op("wgrad", (dy, x), (8,), phase=Phase.WEIGHT_GRADIENT)
    b.accumulate("w", dw)
    b.op("b2", (dy,), (8,), phase=Phase.BACKWARD)
    assert order(b.build(outputs=(y,))) == ["f", "b", "wgrad", "w_accumulate", "b2"]


def test_a_collective_launches_as_soon_as_its_input_exists() -> None:
    b = GraphBuilder()
    b.layer("layers.0")
    (y,) = b.op("f", (b.source("x", 8, StorageKind.INPUT),), (8,))
    (d,) = b.op("b", (y,), (8,), phase=Phase.BACKWARD)
    (other,) = b.op("unrelated", (y,), (8,), phase=Phase.BACKWARD)
    d = b.all_reduce("reduce", b.view("v", d, 8, Phase.BACKWARD), 8, Phase.BACKWARD, comm_ns=5)
    b.op("use", (d, other), (8,), phase=Phase.BACKWARD)
    assert order(b.build(outputs=(y,))) == ["f", "b", "v", "reduce", "unrelated", "reduce_wait", "use"]


@pytest.mark.parametrize("gather_first", [True, False])
def test_a_weight_gradient_does_not_make_a_window_wait_for_a_later_transfer(gather_first: bool) -> None:
    b = GraphBuilder()
    b.layer("layers.0")
    (y,) = b.op("f", (b.source("x", 8, StorageKind.INPUT),), (8,))
    (d,) = b.op("b", (y,), (8,), phase=Phase.BACKWARD)
    launch = {"role": Role.COLLECTIVE, "phase": Phase.BACKWARD, "kind": "all_gather", "group": "tp", "comm_ns": 5}
    gathered = b.op("gather", (d,), (8,), **launch)[0] if gather_first else -1  # type: ignore[arg-type]
    reduced = b.all_reduce("reduce", d, 8, Phase.BACKWARD, comm_ns=5)
    gathered = gathered if gather_first else b.op("gather", (d,), (8,), **launch)[0]  # type: ignore[arg-type]
    weight_gradient = Phase.WEIGHT_GRADIENT
    (waited,) = b.op("gather_wait", (gathered,), (8,), role=Role.WAIT, phase=weight_gradient, kind="wait", alias=True)
    (dw,) = b.op("wgrad", (waited,), (8,), phase=weight_gradient)
    b.accumulate("w", dw)
    b.op("use", (reduced,), (8,), phase=Phase.BACKWARD)
    filled = ["gather_wait", "wgrad", "w_accumulate"]
    expected = (
        ["f", "b", "gather", "reduce", *filled, "reduce_wait", "use"]
        if gather_first
        else ["f", "b", "reduce", "gather", "reduce_wait", "use", *filled]
    )
    assert order(b.build(outputs=(y,))) == expected


def test_on_demand_copies_come_directly_before_the_first_reader_producers_first() -> None:
    graph = megatron_graph(1)
    names = order(graph, *(Placement(op=op(graph, name)) for name in ("up", "gelu", "ln2")))
    at = names.index("gelu_bw")
    assert names[at - 2 : at] == ["ln2'", "up'"]
    at = names.index("down_wgrad")  # the first reader of gelu's output is in the window
    assert names[at - 2 : at] == ["up_reduce", "gelu'"]


def test_copies_in_a_window_run_after_its_weight_gradients() -> None:
    graph = megatron_graph(1)
    window = op(graph, "up_reduce")
    names = order(graph, *(Placement(op=op(graph, name), window=window) for name in ("qkv", "ln1")))
    at = names.index("up_reduce_wait")
    assert names[at - 3 : at] == ["w_up_accumulate", "ln1'", "qkv'"]
    assert names[names.index("attention_bw") - 3 : names.index("attention_bw")] == ["q'", "k'", "v'"]


def test_copies_may_run_in_the_window_of_the_layer_before_in_backward() -> None:
    graph = megatron_graph(2)
    ups = [o.id for o in graph.ops if o.name == "up"]
    windows = [o.id for o in graph.ops if o.name == "qkv_reduce"]  # layers.1 first
    names = order(graph, Placement(op=ups[0], window=windows[0]))
    assert names.index("up'") < names.index("down_dgrad", names.index("down_dgrad") + 1)
    assert names[names.index("up'") + 1] == "qkv_reduce_wait"


def test_a_block_opens_the_layers_backward_after_the_incoming_wait() -> None:
    graph = megatron_graph(1)
    block = graph.layers[1].id
    names = order(graph, *(Placement(op=op(graph, name), block=block) for name in ("ln1", "qkv", "ln2", "up", "gelu")))
    at = names.index("down_dgrad")
    assert names[at - 5 : at] == ["ln1'", "qkv'", "ln2'", "up'", "gelu'"]


def test_a_recomputed_collective_launches_and_waits() -> None:
    graph = megatron_graph(1)
    names = order(graph, *(Placement(op=op(graph, name)) for name in ("proj", "reduce1", "add1")))
    at = names.index("ln2_bw")
    assert names[at - 4 : at] == ["proj'", "reduce1'", "reduce1_wait'", "add1'"]


def test_a_copy_that_nothing_reads_is_not_made() -> None:
    graph = megatron_graph(1)
    assert order(graph, Placement(op=op(graph, "proj"))) == order(graph)


@pytest.mark.parametrize("seed", range(40))
def test_any_decisions_give_a_legal_order(seed: int) -> None:
    graph, rng = random_graph(seed), random.Random(seed)
    collectives = [o.id for o in graph.ops if o.phase is not Phase.FORWARD and o.role is Role.COLLECTIVE]
    placements = []
    for record in graph.ops:
        if record.phase is Phase.FORWARD and record.role in (Role.COMPUTE, Role.COLLECTIVE) and rng.random() < 0.5:
            window = rng.choice(collectives) if collectives and rng.random() < 0.5 else -1
            block = rng.randrange(3) if rng.random() < 0.3 else -1
            placements.append(Placement(op=record.id, window=window, block=block))
    items = build_order(GraphIndex(graph), Decisions(placements=tuple(placements)))
    check_order(graph, items, budget_bytes=None)
    copies = [item for item in items if item.replica]
    assert {item.op for item in copies if graph.ops[item.op].role in (Role.COMPUTE, Role.COLLECTIVE)} <= {
        placement.op for placement in placements
    }
    assert len(resolve(graph, items).sources) == len(graph.ops) + len(copies)


def test_the_same_decisions_give_the_same_order() -> None:
    graph = megatron_graph(2)
    placements = (Placement(op=op(graph, "up")), Placement(op=op(graph, "gelu")))
    first = build_order(GraphIndex(graph), Decisions(placements=placements))
    assert first == build_order(GraphIndex(graph), Decisions(placements=placements[::-1]))
    assert isinstance(first[0], Item)
