"""The tensor and storage tables of a cost graph, filled in graph order from the fake values of a joint graph."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import fx

from lynx_plan.model.graph import Storage, StorageKind, Tensor
from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.joint import merged_values
from lynx_plan.torch_rt.kinds import is_size
from lynx_plan.torch_rt.true_bytes import storage_bytes
from lynx_plan.torch_rt.work import outputs

_ALONE = -1  # the port of an op's only output


@dataclass
class Tables:
    """Ids are list indices. Tensors of one fake storage share one storage here; a wait shares its collective's."""

    tensors: list[Tensor] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    nodes: list[fx.Node | None] = field(default_factory=list)  # tensor id -> the node that holds it
    ports: list[int] = field(default_factory=list)  # tensor id -> index in its op's result, -1: the whole result
    _of_port: dict[tuple[fx.Node, int], int] = field(default_factory=dict)
    _storage_of: dict[int, int] = field(default_factory=dict)

    def of(self, node: fx.Node) -> int:
        """The tensor id of a node that holds one tensor: a placeholder, a constant, an op or a getitem."""
        owner, port = producer(node)
        tensor = self._of_port[owner, port]
        if self.nodes[tensor] is None:
            self.nodes[tensor] = node
        return tensor

    def add_input(self, node: fx.Node, name: str, kind: StorageKind) -> int:
        """A placeholder or constant."""
        value = node.meta["val"]
        return self._add(node, _ALONE, name, value, self._storage(value, kind), value.dtype, -1)

    def add_outputs(
        self, node: fx.Node, op: int, dtypes: tuple[torch.dtype, ...], alias_of: int | None
    ) -> tuple[int, ...]:
        """An op's outputs. `alias_of`: the tensor whose storage a wait's output shares."""
        if is_size(node):
            return (self._add_size(node, op),)
        added = []
        alone = isinstance(node.meta.get("val"), torch.Tensor)
        for port, value in enumerate(outputs(node)):
            if value is None:
                continue
            name = node.name if alone else f"{node.name}.{port}"
            if alias_of is not None:
                storage = self.tensors[alias_of].storage
                for same in (value, *merged_values(node)):
                    self._storage_of[compat.storage_key(same)] = storage
            else:
                scale = dtypes[port].itemsize / value.element_size()
                size = storage_bytes(node, port, value, self.bytes_behind)
                storage = self._storage(value, StorageKind.ACTIVATION, int(size * scale))
            added.append(self._add(node, _ALONE if alone else port, name, value, storage, dtypes[port], op))
        return tuple(added)

    def _add_size(self, node: fx.Node, op: int) -> int:
        """A number on the host: a value without bytes."""
        dtype = {bool: "bool", float: "float64"}.get(type(node.meta["val"]), "int64")
        storage = self.add_storage(0, StorageKind.ACTIVATION)
        size = Tensor(
            id=len(self.tensors), name=node.name, storage=storage, producer=op, dtype=dtype, shape=(), stride=()
        )
        return self._append(size, node, _ALONE)

    def add_storage(self, size: int, kind: StorageKind) -> int:
        self.storages.append(Storage(id=len(self.storages), bytes=size, kind=kind))
        return len(self.storages) - 1

    def bytes_of(self, kind: StorageKind) -> int:
        return sum(storage.bytes for storage in self.storages if storage.kind is kind)

    def bytes_behind(self, node: fx.Node) -> int:
        """Bytes of the storage that a node's tensor lies in."""
        return self.storages[self.tensors[self.of(node)].storage].bytes

    def _storage(self, value: torch.Tensor, kind: StorageKind, size: int | None = None) -> int:
        key = compat.storage_key(value)
        if key not in self._storage_of:
            self._storage_of[key] = self.add_storage(value.untyped_storage().nbytes() if size is None else size, kind)
        return self._storage_of[key]

    def _add(
        self, node: fx.Node, port: int, name: str, value: torch.Tensor, storage: int, dtype: torch.dtype, op: int
    ) -> int:
        tensor = Tensor(
            id=len(self.tensors),
            name=name,
            storage=storage,
            producer=op,
            dtype=str(dtype).removeprefix("torch."),
            shape=tuple(value.shape),
            stride=value.stride(),
        )
        return self._append(tensor, node, port)

    def _append(self, tensor: Tensor, node: fx.Node, port: int) -> int:
        self.tensors.append(tensor)
        self.nodes.append(node if port == _ALONE else None)
        self.ports.append(port)
        self._of_port[node, port] = tensor.id
        return tensor.id


def producer(node: fx.Node) -> tuple[fx.Node, int]:
    """The op (or input) behind a node, and which of its outputs the node is."""
    if node.target is operator.getitem and not isinstance(node.args[0].meta["val"], torch.Tensor):
        return node.args[0], node.args[1]
    return node, _ALONE
