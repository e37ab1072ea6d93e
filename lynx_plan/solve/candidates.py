"""Which forward ops may be recomputed, what they need for it, and what backward reads of them."""

from __future__ import annotations

from collections.abc import Iterable

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.replay import state_bytes
from lynx_plan.model.graph import Op, Phase, Role, StorageKind

# Their result decides what runs next (routing, indices); a copy that broke a tie differently would corrupt the step.
DECIDING = frozenset(
    [
        "topk",
        "kthvalue",
        "mode",
        "sort",
        "argsort",
        "argmax",
        "argmin",
        "nonzero",
        "multinomial",
        "unique",
        "_unique2",
        "bincount",
        "histc",
        "searchsorted",
        "bucketize",
    ]
)


class Candidates:
    """Facts per op id, built once.

    `recomputable`: forward ops that make storages of their own and may run again. `pieces`: storages the op makes.
    `read`: backward reads one of them. `crossing`: forward ops of another layer read one, or one is an output of the
    graph. `reads`: activation storages that a forward op reads (through views); `sources`: the ops that make those.
    `saved`, per storage id: backward reads it. A random op runs again only if it makes more than the state that this
    takes.
    """

    __slots__ = ("crossing", "index", "pieces", "read", "reads", "recomputable", "saved", "sources")

    def __init__(self, index: GraphIndex) -> None:
        graph = index.graph
        self.index = index
        self.pieces: list[list[int]] = [[] for _ in graph.ops]
        for storage, op in enumerate(index.storage_op):
            if op >= 0:
                self.pieces[op].append(storage)
        self.reads = [_reads(index, op) if op.phase is Phase.FORWARD else () for op in graph.ops]
        self.sources = [tuple(dict.fromkeys(index.storage_op[s] for s in reads)) for reads in self.reads]
        rewritten = _rewritten(index)
        self.recomputable = [bool(self.pieces[op.id]) and _may_run_again(op, index, rewritten) for op in graph.ops]
        for drawn in graph.ops:
            if drawn.rng and sum(graph.storages[s].bytes for s in self.pieces[drawn.id]) <= state_bytes(graph):
                self.recomputable[drawn.id] = False
        self.saved = [_backward_reads(index, storage) for storage in range(len(graph.storages))]
        self.read = [any(self.saved[s] for s in pieces) for pieces in self.pieces]
        kept = {graph.tensors[t].storage for t in graph.outputs}
        self.crossing = [any(s in kept or _crosses(index, s, op.id) for s in self.pieces[op.id]) for op in graph.ops]

    def closure_of(self, op: int, dropped: Iterable[int]) -> tuple[int, ...]:
        """The op, and those of `dropped` that it needs to run again; ascending."""
        allowed, found, stack = set(dropped), set(), [op]
        while stack:
            one = stack.pop()
            if one not in found:
                found.add(one)
                stack.extend(source for source in self.sources[one] if source in allowed)
        return tuple(sorted(found))

    def is_forward(self, op: int) -> bool:
        return self.index.graph.ops[op].phase is Phase.FORWARD

    def droppable(self, op: int) -> bool:
        """It may be dropped after forward and made again from what its own layer and its layer's input hold."""
        return self.recomputable[op] and not self.crossing[op]

    def closure(self, drop: Iterable[int]) -> tuple[int, ...]:
        """Of the ops to drop, those that must run again: what backward reads, and what that needs; ascending."""
        allowed = set(drop)
        found: set[int] = set()
        stack = [op for op in allowed if self.read[op]]
        while stack:
            op = stack.pop()
            if op not in found:
                found.add(op)
                stack.extend(source for source in self.sources[op] if source in allowed)
        return tuple(sorted(found))


def _reads(index: GraphIndex, op: Op) -> tuple[int, ...]:
    tensors = index.graph.tensors
    storages = dict.fromkeys(tensors[t].storage for t in op.inputs)
    return tuple(s for s in storages if index.storage_op[s] >= 0 and index.storage_op[s] != op.id)


def _rewritten(index: GraphIndex) -> frozenset[int]:
    """Storages that a second op writes in place: no copy of one op alone makes them again."""
    graph = index.graph
    return frozenset(
        graph.tensors[tensor].storage
        for op in graph.ops
        if op.role is Role.COMPUTE
        for tensor in op.outputs
        if index.storage_op[graph.tensors[tensor].storage] != op.id
    )


def _may_run_again(op: Op, index: GraphIndex, rewritten: frozenset[int]) -> bool:
    if op.phase is not Phase.FORWARD or op.role not in (Role.COMPUTE, Role.COLLECTIVE):
        return False
    if op.effect or not DECIDING.isdisjoint(op.kind.split(".")):
        return False
    tensors = index.graph.tensors
    storages = [tensors[t].storage for t in op.outputs]
    own = all(index.graph.storages[s].kind is StorageKind.ACTIVATION and index.storage_op[s] == op.id for s in storages)
    return own and rewritten.isdisjoint(storages)


def _readers(index: GraphIndex, storage: int) -> Iterable[Op]:
    ops = index.graph.ops
    return (ops[op] for tensor in index.storage_tensors[storage] for op in index.consumers[tensor])


def _backward_reads(index: GraphIndex, storage: int) -> bool:
    return any(op.phase is not Phase.FORWARD for op in _readers(index, storage))


def _crosses(index: GraphIndex, storage: int, maker: int) -> bool:
    layer = index.op_layer[maker]
    return any(op.phase is Phase.FORWARD and index.op_layer[op.id] != layer for op in _readers(index, storage))
