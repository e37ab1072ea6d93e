"""Which ops a backend runs as one kernel: neighbours of a fusion group's kinds, in one layer and one pass.

Members agree on the number of elements that they make, and nothing outside lies between two of them: a kernel
cannot wait for another one in its middle. An op joins the first producer that lets it; each op is in one kernel at
most, and groups take their ops in the order in which the machine names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lynx_plan.model.graph import CostGraph, Layer, Op, Phase, Role, StorageKind
from lynx_plan.model.machine import FusionGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """Op ids that run as one kernel, ascending, and the group that names them."""

    group: FusionGroup
    ops: tuple[int, ...]


def fused_ops(graph: CostGraph, groups: tuple[FusionGroup, ...]) -> tuple[Fused, ...]:
    """Every set of two or more ops that one of the `groups` fuses, in order of the first op."""
    if not groups:
        return ()
    sources = _sources(graph)
    found: list[Fused] = []
    for layer in graph.layers:
        for forward in (True, False):
            ops = [graph.ops[op] for op in layer.ops if (graph.ops[op].phase is Phase.FORWARD) is forward]
            finder = _Finder(graph, layer, sources, ops)
            for group in groups:  # earlier groups take their ops first
                found += finder.find(group)
    return tuple(sorted(found, key=lambda fused: fused.ops))


def outer_bytes(graph: CostGraph, fused: Fused, readers: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """Bytes that the kernel reads and writes: distinct storages from outside, and results that others use.

    `readers`: storage id -> ops that read it, through views too. A result that the backward pass keeps is used by it.
    """
    members = set(fused.ops)
    made = {graph.tensors[t].storage for op in fused.ops for t in graph.ops[op].outputs}
    read: dict[int, int] = {}
    for op in fused.ops:
        for tensor in graph.ops[op].inputs:
            storage = graph.tensors[tensor].storage
            if storage not in made:
                read[storage] = max(read.get(storage, 0), _bytes(graph, tensor))
    kept = {graph.tensors[t].storage for t in graph.outputs}
    written = sum(
        graph.storages[s].bytes for s in made if s in kept or any(reader not in members for reader in readers[s])
    )
    return round(sum(read.values()) * fused.group.read_share), written + sum(
        _main_gradient(graph, graph.ops[op], fused.group) for op in fused.ops
    )


def storage_readers(graph: CostGraph) -> tuple[tuple[int, ...], ...]:
    """Storage id -> ops that read it and are no views."""
    readers: list[list[int]] = [[] for _ in graph.storages]
    for op in graph.ops:
        if op.role not in (Role.VIEW, Role.WAIT):
            for tensor in op.inputs:
                readers[graph.tensors[tensor].storage].append(op.id)
    return tuple(tuple(ops) for ops in readers)


def _main_gradient(graph: CostGraph, op: Op, group: FusionGroup) -> int:
    """Bytes that an accumulation in the kernel reads and writes of the main gradient."""
    if op.role is not Role.ACCUMULATE:
        return 0
    tensor = graph.tensors[op.inputs[0]]
    each = group.main_gradient_bytes or _bytes(graph, tensor.id) // max(1, prod(tensor.shape))
    return 2 * each * prod(tensor.shape)


def _bytes(graph: CostGraph, tensor: int) -> int:
    """Bytes of a tensor's distinct elements: its storage's at most."""
    record = graph.tensors[tensor]
    whole = graph.storages[record.storage].bytes
    size = prod(n for n, step in zip(record.shape, record.stride, strict=True) if step or not n)
    return min(whole, size * _WIDTHS.get(record.dtype, whole))


_WIDTHS = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("bfloat16", "float16", "int16"), 2),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float64", "int64", "complex64"), 8),
}


def _sources(graph: CostGraph) -> tuple[int, ...]:
    """Storage id -> the op that makes it, -1 if none."""
    maker = [-1] * len(graph.storages)
    for op in graph.ops:
        for tensor in op.outputs:
            storage = graph.tensors[tensor].storage
            if maker[storage] < 0 and graph.storages[storage].kind is StorageKind.ACTIVATION:
                maker[storage] = op.id
    return tuple(maker)


class _Finder:
    """The ops of a layer, forward or backward, and which of them are still free."""

    def __init__(self, graph: CostGraph, layer: Layer, sources: tuple[int, ...], ops: list[Op]) -> None:
        self.graph = graph
        self.sources = sources
        self.free = {op.id: op for op in ops if self._own(op)}
        self.bit = {op: 1 << slot for slot, op in enumerate(layer.ops)}
        self.before: dict[int, int] = {}  # op -> bits of the ops of this pass that it depends on
        for op in ops:
            self.before[op.id] = 0
            for producer in self._producers(op):
                self.before[op.id] |= self.bit[producer] | self.before[producer]

    def find(self, group: FusionGroup) -> list[Fused]:
        """The sets of two and more free ops that this group fuses; they are free no more."""
        sets: list[list[Op]] = []
        home: dict[int, list[Op]] = {}
        for op in self.free.values():
            if op.kind not in group.kinds:
                continue
            homes = (home[producer] for producer in self._producers(op) if producer in home)
            members = next((members for members in homes if self._fits(op, members)), None)
            if members is None:
                members = []
                sets.append(members)
            members.append(op)
            home[op.id] = members
        found = [Fused(group=group, ops=tuple(op.id for op in members)) for members in sets if len(members) > 1]
        for fused in found:
            for taken in fused.ops:
                del self.free[taken]
        return found

    def _fits(self, op: Op, members: list[Op]) -> bool:
        """As many elements, and no op outside between the members and this one."""
        if self._elements(op) != self._elements(members[0]):
            return False
        inside = sum(self.bit[member.id] for member in members)
        outside = self.before[op.id] & ~inside
        return not any(self.bit[other] & outside and before & inside for other, before in self.before.items())

    def _producers(self, op: Op) -> list[int]:
        makers = (self.sources[self.graph.tensors[tensor].storage] for tensor in op.inputs)
        return [maker for maker in dict.fromkeys(makers) if maker in self.before and maker != op.id]

    def _own(self, op: Op) -> bool:
        """Its results are its own: an op that writes in place is a kernel apart."""
        return all(self.sources[self.graph.tensors[t].storage] == op.id for t in op.outputs)

    def _elements(self, op: Op) -> int:
        return prod(self.graph.tensors[(op.outputs or op.inputs)[0]].shape)
