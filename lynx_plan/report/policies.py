"""What a plan's order decided, layer by layer: what is kept, what is recomputed, and where. Derived, never stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.analyze.classes import layer_classes
from lynx_plan.analyze.flow import Flow
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.windows import Window
from lynx_plan.model.graph import CostGraph, Phase, Role, StorageKind
from lynx_plan.model.program import Item
from lynx_plan.report.names import op_name

ON_DEMAND = "on demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A recomputation within a layer: op slot and name, replica, and `where` (a window's local name, or on demand)."""

    slot: int
    name: str
    replica: int
    where: str
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is kept and recomputed, alike in every layer of `layers`; `kept_bytes` is per layer."""

    class_name: str
    layers: tuple[int, ...]
    kept_bytes: int
    recomputed: tuple[Recomputed, ...]


def policies(index: GraphIndex, items: Sequence[Item], flow: Flow, windows: Sequence[Window]) -> tuple[Policy, ...]:
    """The policies of an order: layers of one class that keep and recompute alike share one, in layer order."""
    kept = _kept_storages(index, items, flow)
    recomputed = _recomputed(index, items, windows)
    groups: dict[tuple[object, ...], list[int]] = {}
    names: dict[int, str] = {}
    for layer_class in layer_classes(index, priced=True):
        for layer in layer_class.layers:
            names[layer] = layer_class.name
            slots = tuple(index.op_slot[index.storage_op[storage]] for storage in kept[layer])
            bytes_ = tuple(index.graph.storages[storage].bytes for storage in kept[layer])
            key = (layer_class.digest, slots, bytes_, recomputed[layer])
            groups.setdefault(key, []).append(layer)
    rows = [
        Policy(
            class_name=names[layers[0]],
            layers=tuple(layers),
            kept_bytes=sum(index.graph.storages[storage].bytes for storage in kept[layers[0]]),
            recomputed=recomputed[layers[0]],
        )
        for layers in groups.values()
    ]
    return tuple(sorted(rows, key=lambda policy: policy.layers))


def kept_instances(graph: CostGraph, items: Sequence[Item], flow: Flow) -> tuple[int, ...]:
    """Storages whose original is alive from its forward op to a backward op or a recomputation: what is kept."""
    return tuple(
        life.storage
        for life in flow.lifetimes
        if graph.storages[life.storage].kind == StorageKind.ACTIVATION
        and is_original_forward(graph, items[life.start])
        and not is_original_forward(graph, items[life.end])
    )


def kept_bytes(index: GraphIndex, items: Sequence[Item], flow: Flow) -> tuple[int, ...]:
    """Bytes that each layer keeps for the backward pass, by layer id."""
    storages = index.graph.storages
    return tuple(sum(storages[storage].bytes for storage in kept) for kept in _kept_storages(index, items, flow))


def is_original_forward(graph: CostGraph, item: Item) -> bool:
    """Whether an item belongs to the forward pass proper."""
    return item.replica == 0 and graph.ops[item.op].phase == Phase.FORWARD


def _kept_storages(index: GraphIndex, items: Sequence[Item], flow: Flow) -> list[list[int]]:
    """By layer."""
    kept: list[list[int]] = [[] for _ in index.graph.layers]
    for storage in sorted(kept_instances(index.graph, items, flow)):
        if index.storage_op[storage] >= 0:
            kept[index.op_layer[index.storage_op[storage]]].append(storage)
    return kept


def _recomputed(index: GraphIndex, items: Sequence[Item], windows: Sequence[Window]) -> list[tuple[Recomputed, ...]]:
    """By layer, in the order in which they run; views and waits are left out."""
    graph = index.graph
    where, names = _places(items, windows), local_names(windows)
    rows: list[list[Recomputed]] = [[] for _ in graph.layers]
    for position, item in enumerate(items):
        op = graph.ops[item.op]
        if item.replica == 0 or op.role in (Role.VIEW, Role.WAIT):
            continue
        layer = index.op_layer[item.op]
        row = Recomputed(
            slot=index.op_slot[item.op],
            name=op_name(op, graph.layers[layer]),
            replica=item.replica,
            where=_relative(where.get(position), layer, names),
            time_ns=op.time_ns + op.comm_ns,
        )
        rows[layer].append(row)
    return [tuple(row) for row in rows]


def _places(items: Sequence[Item], windows: Sequence[Window]) -> dict[int, Window]:
    """The window that each position lies in: the one that closes first, since it is what the work there may delay."""
    places: dict[int, Window] = {}
    for window in sorted(windows, key=lambda window: (window.wait, window.launch)):
        for position in range(window.launch + 1, window.wait):
            places.setdefault(position, window)
    return places


def local_names(windows: Sequence[Window]) -> dict[int, str]:
    """Window id -> its name within its layer, the same in every layer of a class: `bw.a` is the first backward one."""
    counts: dict[tuple[int, str], int] = {}
    names: dict[int, str] = {}
    for window in sorted(windows, key=lambda window: window.launch):
        key = (window.layer, window.name.rstrip("0123456789"))
        names[window.id] = f"{key[1]}.{_letters(counts.get(key, 0))}"
        counts[key] = counts.get(key, 0) + 1
    return names


def _letters(number: int) -> str:
    """0 is a, 25 is z, 26 is aa."""
    head, tail = divmod(number, 26)
    return (_letters(head - 1) if head else "") + chr(ord("a") + tail)


def _relative(window: Window | None, layer: int, names: dict[int, str]) -> str:
    """A window's name as seen from a layer; `+1.bw.a` is one of the layer after it."""
    if window is None:
        return ON_DEMAND
    offset = window.layer - layer
    return f"{offset:+d}.{names[window.id]}" if offset else names[window.id]
