"""An index of a cost graph: who reads a tensor, which layer and slot an op has, which op allocates a storage."""

from __future__ import annotations

from collections.abc import Iterable

from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, StorageKind
from lynx_plan.model.program import Item

HINT = "make the profile again with: lynx profile MODEL.py"


class GraphIndex:
    """Facts of a graph by id, built once. Raises LynxError where ids do not hang together.

    `consumers`: tensor id -> ids of the ops that read it, ascending. `op_layer`, `op_slot`: op id -> its
    layer, and its index within that layer's ops. `storage_op`: storage id -> the op that allocates it, -1 if
    it is not an activation. `storage_tensors`: storage id -> the tensors that live in it, ascending.
    """

    __slots__ = ("__weakref__", "consumers", "graph", "op_layer", "op_slot", "storage_op", "storage_tensors")

    def __init__(self, graph: CostGraph) -> None:
        _check_ids(graph)
        self.graph = graph
        self.consumers: tuple[tuple[int, ...], ...] = _consumers(graph)
        self.op_layer: tuple[int, ...]
        self.op_slot: tuple[int, ...]
        self.op_layer, self.op_slot = _places(graph)
        self.storage_tensors: tuple[tuple[int, ...], ...] = _storage_tensors(graph)
        self.storage_op: tuple[int, ...] = _allocators(graph, self.storage_tensors)

    def item_name(self, item: Item) -> str:
        """Short text of an item for people: `layers.3.gelu@forward`, `layers.3.gelu@r1`."""
        op = self.graph.ops[item.op]
        copy = f"r{item.replica}" if item.replica else op.phase.value
        following = f"m+{item.microbatch}" if item.microbatch else ""
        return f"{self.graph.layers[self.op_layer[item.op]].name}.{op.name}@{copy}{following}"


def _check_ids(graph: CostGraph) -> None:
    """Ids are indices, and every reference points to something that exists (producers before readers)."""
    ids = {
        "ops": [op.id for op in graph.ops],
        "tensors": [tensor.id for tensor in graph.tensors],
        "storages": [storage.id for storage in graph.storages],
        "layers": [layer.id for layer in graph.layers],
    }
    for what, given in ids.items():
        wrong = next((position for position, number in enumerate(given) if number != position), None)
        if wrong is not None:
            raise LynxError(f"has id {given[wrong]} at index {wrong}", where=f"/{what}/{wrong}", hint=HINT)
    tensors, storages = range(len(graph.tensors)), range(len(graph.storages))
    for tensor in graph.tensors:
        if tensor.storage not in storages or not -1 <= tensor.producer < len(graph.ops):
            raise LynxError("refers to no storage or op", where=f"/tensors/{tensor.id}", hint=HINT)
    for op in graph.ops:
        if any(t not in tensors or graph.tensors[t].producer >= op.id for t in op.inputs):
            raise LynxError("reads a tensor that no earlier op produces", where=f"/ops/{op.id}/inputs", hint=HINT)
        if any(t not in tensors or graph.tensors[t].producer != op.id for t in op.outputs):
            raise LynxError("lists an output that it does not produce", where=f"/ops/{op.id}/outputs", hint=HINT)
    if any(t not in tensors for t in graph.outputs):
        raise LynxError("names a tensor that does not exist", where="/outputs", hint=HINT)


def _consumers(graph: CostGraph) -> tuple[tuple[int, ...], ...]:
    readers: list[list[int]] = [[] for _ in graph.tensors]
    for op in graph.ops:
        for tensor in dict.fromkeys(op.inputs):
            readers[tensor].append(op.id)
    return _tuples(readers)


def _places(graph: CostGraph) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The layer and the slot of each op; every op has exactly one."""
    layer_of, slot_of = [-1] * len(graph.ops), [-1] * len(graph.ops)
    for layer in graph.layers:
        for slot, op in enumerate(layer.ops):
            if not 0 <= op < len(graph.ops) or layer_of[op] >= 0:
                raise LynxError(
                    f"op {op} does not exist or is in two layers", where=f"/layers/{layer.id}/ops", hint=HINT
                )
            layer_of[op], slot_of[op] = layer.id, slot
    if -1 in layer_of:
        raise LynxError("is in no layer", where=f"/ops/{layer_of.index(-1)}", hint=HINT)
    return tuple(layer_of), tuple(slot_of)


def _storage_tensors(graph: CostGraph) -> tuple[tuple[int, ...], ...]:
    members: list[list[int]] = [[] for _ in graph.storages]
    for tensor in graph.tensors:
        members[tensor.storage].append(tensor.id)
    return _tuples(members)


def _allocators(graph: CostGraph, storage_tensors: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The first producer of a tensor in each activation storage; -1 for static ones and graph inputs."""
    return tuple(
        min((graph.tensors[t].producer for t in storage_tensors[storage.id]), default=-1)
        if storage.kind == StorageKind.ACTIVATION
        else -1
        for storage in graph.storages
    )


def _tuples(lists: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(entries) for entries in lists)
