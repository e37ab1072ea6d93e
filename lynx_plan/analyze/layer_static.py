"""Static memory of a range of layers: what a pipeline stage holds of parameters, gradients, optimizer, inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import CostGraph, Role, StaticMemory, StorageKind

_SHARED = {
    "parameters_bytes": StorageKind.PARAMETER,
    "buffers_bytes": StorageKind.BUFFER,
    "inputs_bytes": StorageKind.INPUT,
}
_TRAINED = ("gradients_bytes", "optimizer_bytes")


class LayerStatic:
    """Every static storage's bytes of each kind, and the layers that hold it; built once per graph.

    A storage is held by each layer with an op that reads it, or that accumulates its gradient; one that none reads by
    the layer of the storage before it. Totals are those of the graph: what each storage has of one is in proportion
    to its bytes (gradients and optimizer: of trained parameters only), in integers that add up. A storage that two
    stages hold counts in both.
    """

    def __init__(self, index: GraphIndex) -> None:
        graph = index.graph
        self.index = index
        self.graph = graph
        self.trained: dict[str, int] = _trained(graph)  # name of a parameter that is accumulated -> its storage
        self.holders: tuple[tuple[int, ...], ...] = _holders(index, self.trained)  # storage -> layers, ascending
        self._ranged = {name: _Ranged(share, self.holders, graph) for name, share in self._shares().items()}
        self._optimizer = _Ranged(_in_proportion(graph.optimizer_ns, self._weights()), self.holders, graph)
        self._read = self._parameters_read()

    def of(self, first: int, last: int) -> StaticMemory:
        """The static memory of layers first to last - 1 on a rank of their own."""
        static = self.graph.static
        workspace, most = static.workspace_bytes, max(self._read, default=0)
        if workspace and most:  # goes with the largest layer, which may be elsewhere
            workspace = -(-workspace * max(self._read[first:last]) // most)
        part = {name: ranged.of(first, last) for name, ranged in self._ranged.items()}
        return replace(
            static,
            workspace_bytes=workspace,
            parameters_bytes=part["parameters_bytes"],
            buffers_bytes=part["buffers_bytes"],
            inputs_bytes=part["inputs_bytes"],
            gradients_bytes=part["gradients_bytes"],
            optimizer_bytes=part["optimizer_bytes"],
        )

    def optimizer_ns_of(self, first: int, last: int) -> int:
        """The part of the optimizer's time that these layers' parameters take."""
        return self._optimizer.of(first, last)

    def _weights(self) -> dict[int, int]:
        """Storage -> bytes, of the parameters that are trained (of all where none is known to be)."""
        chosen = set(self.trained.values())
        storages = self.graph.storages
        return {s.id: s.bytes for s in storages if s.kind is StorageKind.PARAMETER and (not chosen or s.id in chosen)}

    def _shares(self) -> dict[str, dict[int, int]]:
        """Name of a total -> storage -> its part of it."""
        static, storages = self.graph.static, self.graph.storages
        shares = {}
        for name, kind in _SHARED.items():
            weights = {s.id: s.bytes for s in storages if s.kind is kind}
            shares[name] = _in_proportion(getattr(static, name), weights)
        for name in _TRAINED:
            shares[name] = _in_proportion(getattr(static, name), self._weights())
        return shares

    def _parameters_read(self) -> list[int]:
        """Bytes of the parameters that each layer holds."""
        found = [0] * len(self.graph.layers)
        for storage in self.graph.storages:
            if storage.kind is StorageKind.PARAMETER:
                for layer in self.holders[storage.id]:
                    found[layer] += storage.bytes
        return found


class _Ranged:
    """The sum of shares over the storages that a range of layers holds, each once."""

    def __init__(self, share: dict[int, int], holders: Sequence[tuple[int, ...]], graph: CostGraph) -> None:
        alone = [0] * max(1, len(graph.layers))
        self.several: list[tuple[tuple[int, ...], int]] = []
        for storage, value in share.items():
            if storage < 0:  # belongs to no storage
                alone[0] += value
            elif len(holders[storage]) == 1:
                alone[holders[storage][0]] += value
            else:
                self.several.append((holders[storage], value))
        self.prefix = [0, *accumulate(alone)]

    def of(self, first: int, last: int) -> int:
        shared = sum(value for layers, value in self.several if any(first <= layer < last for layer in layers))
        return self.prefix[last] - self.prefix[first] + shared


def _in_proportion(total: int, weights: dict[int, int]) -> dict[int, int]:
    """Integers in proportion to the weights that add up to `total`; all of it under -1 if there are no weights."""
    whole = sum(weights.values())
    if not whole:
        return {-1: total} if total else {}
    found, before, done = {}, 0, 0
    for key, weight in weights.items():
        before += weight
        upto = total * before // whole
        found[key] = upto - done
        done = upto
    return found


def _trained(graph: CostGraph) -> dict[str, int]:
    named = {
        t.name: t.storage
        for t in graph.tensors
        if t.producer < 0 and graph.storages[t.storage].kind is StorageKind.PARAMETER
    }
    names = [op.parameter for op in graph.ops if op.role is Role.ACCUMULATE]
    return {name: named[name] for name in names if name in named}


def _holders(index: GraphIndex, trained: dict[str, int]) -> tuple[tuple[int, ...], ...]:
    """Storage -> the layers that read or accumulate it; activations have none."""
    graph, layer = index.graph, index.op_layer
    found: list[set[int]] = [set() for _ in graph.storages]
    for storage in graph.storages:
        if storage.kind is not StorageKind.ACTIVATION:
            tensors = index.storage_tensors[storage.id]
            found[storage.id].update(layer[op] for tensor in tensors for op in index.consumers[tensor])
    accumulates = [op for op in graph.ops if op.role is Role.ACCUMULATE]
    for op in accumulates:
        if op.parameter in trained:
            found[trained[op.parameter]].add(layer[op.id])
    loose = [s.id for s in graph.storages if s.kind is StorageKind.GRADIENT and not index.storage_tensors[s.id]]
    if len(loose) == len(accumulates):  # main gradients have no tensors: one per accumulation, in the same order
        for gradient, op in zip(loose, accumulates, strict=True):
            weight = trained.get(op.parameter)
            found[gradient].update({layer[op.id]} if weight is None else found[weight])
    return _complete(graph, found)


def _complete(graph: CostGraph, found: list[set[int]]) -> tuple[tuple[int, ...], ...]:
    """Static storages that no layer reads are with the one of their kind before them."""
    near: dict[StorageKind, int] = {}
    for storage in graph.storages:
        if storage.kind is StorageKind.ACTIVATION:
            continue
        if not found[storage.id] and graph.layers:
            found[storage.id].add(near.get(storage.kind, 0))
        near[storage.kind] = min(found[storage.id], default=0)
    return tuple(tuple(sorted(layers)) for layers in found)
