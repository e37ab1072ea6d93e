"""Why no plan fits: what the smallest budget consists of, where its peak is, and which tensors fill it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.units import format_bytes

SHOWN = 6  # kinds of tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Tensors of one sort that are alive at the peak: the same op of several layers, so many, bytes together."""

    name: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`binding`: names of what cannot be met: "static" where static memory alone is over the budget, else
    "activations"; `at`: the item that runs at the peak of the smallest plan; `fillings`: the largest first."""

    binding: tuple[str, ...]
    static_bytes: int
    activation_bytes: int
    at: str
    fillings: tuple[Filling, ...]

    def __str__(self) -> str:
        largest = ", ".join(f"{f.count} x {f.name} {format_bytes(f.bytes)}" for f in self.fillings)
        return f"its peak is at {self.at}, filled by {largest}"


def diagnose(index: GraphIndex, items: Sequence[Item], budget_bytes: int) -> Diagnosis:
    """What fills the peak of an order that does not fit the budget."""
    graph = index.graph
    flow = resolve(graph, items)
    memory = memory_curve(graph, items, flow)
    position = memory.peak_position
    groups: dict[str, list[int]] = {}
    for life in flow.lifetimes:
        if life.start <= position <= life.end:
            size = graph.storages[life.storage].bytes
            groups.setdefault(_sort(index, life.storage, items[life.start]), []).append(size)
    fillings = [Filling(name=name, count=len(sizes), bytes=sum(sizes)) for name, sizes in groups.items()]
    fillings.sort(key=lambda filling: (-filling.bytes, filling.name))
    static = graph.static.total_bytes
    return Diagnosis(
        binding=("static", "activations") if static > budget_bytes else ("activations",),
        static_bytes=static,
        activation_bytes=memory.peak_bytes,
        at=index.item_name(items[position]) if items else "",
        fillings=tuple(fillings[:SHOWN]),
    )


def _sort(index: GraphIndex, storage: int, maker: Item) -> str:
    """What tensors of one sort share: the module's place in its layer and the kind of op that made it."""
    graph = index.graph
    if index.storage_op[storage] < 0:
        return "input"
    op = graph.ops[maker.op]
    layer = graph.layers[index.op_layer[op.id]]
    kind = op.kind.split(".")[1] if "." in op.kind else op.kind
    module = op.module.removeprefix(layer.name).strip(".")
    family = layer.name.rstrip("0123456789").rstrip(".")
    inside = f"{family}.*" if family != layer.name else layer.name
    name = f"{inside}.{module}.{kind}" if module else f"{inside}.{kind}"
    return f"{name} (made again)" if maker.replica else name
