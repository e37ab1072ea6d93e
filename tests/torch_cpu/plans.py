"""Plans made by hand from an order, so that tests of the runtime need no solver."""

from __future__ import annotations

from collections.abc import Sequence

from lynx_plan import files
from lynx_plan.analyze.classes import layer_classes, op_lines, structure_digest
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import compress
from lynx_plan.model.graph import CostGraph, Phase
from lynx_plan.model.plan import Plan, PlannedClass, StagePlan
from lynx_plan.model.program import Item
from lynx_plan.simulate.outcome import predict
from tests.unit.random_orders import without_dead_copies

Order = tuple[Item, ...]


def plan_of(graph: CostGraph, items: Order, *, micro_batches: int = 1, algo: str = "by hand") -> Plan:
    index = GraphIndex(graph)
    classes = tuple(
        PlannedClass(digest=each.digest, name=each.name, layers=each.layers, ops=op_lines(index, each.layers[0]))
        for each in layer_classes(index, priced=False)
    )
    layers = tuple(range(len(graph.layers)))
    return Plan(
        algo=algo,
        status="feasible",
        budget_text="1TiB",
        budget_bytes=2**40,
        micro_batches=micro_batches,
        profile_digest=files.digest(graph),
        structure_digest=structure_digest(graph),
        model=graph.model,
        mesh=graph.mesh,
        capture=graph.capture,
        link=graph.link,
        stages=(StagePlan(layers=layers, classes=classes, program=compress(items, index)),),
        predicted=predict(graph, items, micro_batches=micro_batches),
    )


def keep_all(graph: CostGraph) -> Order:
    return tuple(Item(op.id) for op in graph.ops)


def recompute_all(graph: CostGraph) -> Order:
    """Every layer's forward again, on demand, before the first backward op of the layer."""
    index = GraphIndex(graph)
    begun: set[int] = set()
    items: list[Item] = []
    for op in graph.ops:
        layer = index.op_layer[op.id]
        if op.phase is not Phase.FORWARD and layer not in begun:
            begun.add(layer)
            items += [Item(again, 1) for again in graph.layers[layer].ops if may_run_again(graph, again)]
        items.append(Item(op.id))
    return without_dead_copies(graph, tuple(items))


def recompute_in_windows(graph: CostGraph) -> Order:
    """The copies of `recompute_all`, up to six of them in each backward window; what comes too late, on demand."""
    order = recompute_all(graph)
    copies = [item for item in order if item.replica]
    waits = {position for position, item in enumerate(order) if graph.ops[item.op].kind == "wait" and not item.replica}
    backward = next(position for position, item in enumerate(order) if graph.ops[item.op].phase is not Phase.FORWARD)
    moved: list[Item] = []
    for position, item in enumerate(order):
        if item.replica:
            continue
        if position in waits and position > backward:
            moved += copies[:6]
            del copies[:6]
        moved += _needed(graph, item, copies)
        moved.append(item)
    return without_dead_copies(graph, tuple(moved))


def _needed(graph: CostGraph, item: Item, copies: list[Item]) -> Sequence[Item]:
    """The copies up to the last one that this item reads; taken from `copies`."""
    if graph.ops[item.op].phase is Phase.FORWARD:
        return []
    producers = {graph.tensors[tensor].producer for tensor in graph.ops[item.op].inputs}
    last = max((place for place, copy in enumerate(copies) if copy.op in producers), default=-1)
    taken = copies[: last + 1]
    del copies[: last + 1]
    return taken


def may_run_again(graph: CostGraph, op: int) -> bool:
    record = graph.ops[op]
    makes_the_loss = any(graph.tensors[tensor].producer == op for tensor in graph.outputs)
    return record.phase is Phase.FORWARD and not (record.effect or makes_the_loss)
