"""Random small graphs, and random legal orders of any graph, for properties that must hold for all."""

from __future__ import annotations

import random

from lynx_plan.analyze.flow import resolve
from lynx_plan.model.graph import CostGraph, Phase, StorageKind
from lynx_plan.model.program import Item
from tests.unit.builders import GraphBuilder


def random_graph(seed: int, ops: int = 30, layers: int = 3) -> CostGraph:
    """A random DAG of forward computes, views and collectives over `layers` layers, and a backward that reads them."""
    rng = random.Random(seed)
    b = GraphBuilder()
    values = [b.source("x", 64, StorageKind.INPUT), b.source("w", 32)]
    for i in range(ops):
        b.layer(f"layers.{i * layers // ops}")
        values.append(_random_op(b, rng, f"f{i}", values, Phase.FORWARD))
    gradients = [values[-1]]
    for i in reversed(range(ops)):
        b.layer(f"layers.{i * layers // ops}")
        gradients.append(_random_op(b, rng, f"b{i}", [rng.choice(values), gradients[-1]], Phase.BACKWARD))
    b.accumulate("w", gradients[-1], rng.randrange(5))
    return b.build(outputs=(values[-1],), optimizer_ns=rng.randrange(10))


def _random_op(b: GraphBuilder, rng: random.Random, name: str, values: list[int], phase: Phase) -> int:
    size = 4 * rng.randrange(1, 50)
    roll = rng.random()
    if roll < 0.15:
        return b.view(name, values[-1], size, phase)
    if roll < 0.35:
        comm = rng.randrange(1, 60)
        steal = rng.randrange(comm)
        return b.all_reduce(name, values[-1], size, phase, comm_ns=comm, launch_ns=rng.randrange(4), steal_ns=steal)
    inputs = tuple({values[-1], rng.choice(values)})
    return b.op(name, tuple(sorted(inputs)), (size,), phase=phase, time_ns=rng.randrange(40))[0]


def random_order(graph: CostGraph, rng: random.Random) -> tuple[Item, ...]:
    """A legal order: the forward pass, then the backward in a random order with random recomputation on demand."""
    items = [Item(op.id) for op in graph.ops if op.phase is Phase.FORWARD]
    waiting = [op for op in graph.ops if op.phase is not Phase.FORWARD]
    done = {item.op for item in items} | {-1}
    copies: dict[int, int] = {}

    def recompute(tensor: int) -> None:
        producer = graph.tensors[tensor].producer
        op = graph.ops[producer]
        if producer < 0 or op.phase is not Phase.FORWARD or op.effect or rng.random() < 0.5:
            return
        for needed in op.inputs:
            recompute(needed)
        copies[producer] = copies.get(producer, 0) + 1
        items.append(Item(producer, copies[producer]))

    while waiting:
        ready = [op for op in waiting if all(graph.tensors[t].producer in done for t in op.inputs)]
        op = rng.choice(ready)
        for tensor in op.inputs:
            recompute(tensor)
        items.append(Item(op.id))
        waiting.remove(op)
        done.add(op.id)
    return without_dead_copies(graph, tuple(items))


def without_dead_copies(graph: CostGraph, items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The order without recomputed copies that nobody reads."""
    read = {source for sources in resolve(graph, items).sources for source in sources}
    kept = tuple(item for position, item in enumerate(items) if not item.replica or position in read)
    return kept if len(kept) == len(items) else without_dead_copies(graph, kept)
