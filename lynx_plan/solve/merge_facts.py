"""Facts for merging a backward pass with the next microbatch's forward pass: who waits for whom, who frees what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from lynx_plan.analyze.flow import READS_UNTIL_WAIT, resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import Op, Phase, Role
from lynx_plan.model.program import Item
from lynx_plan.solve.score import Scored

AHEAD = 1  # layers: a copy may run from when the backward of this many layers before its reader's begins


class MergeFacts:
    """Nodes 0, 1, ... are the backward items (microbatch 0) as `alone` orders them, then the forward items of
    microbatch 1 in graph order; nodes are in an order that could run.

    `after[n]`: nodes that wait for n; `waits_for[n]`: how many nodes n waits for; `path_ns[n]`: the longest chain of
    time from n on. `reads[n]`, `makes[n]`: instances of memory; `readers[i]`: how many nodes read instance i,
    `lasts[i]`: whether it outlives the merged part, `sizes[i]`: its bytes; those below `before` are
    there when the part begins. `unread[n]`: a view that no node here reads. `to_come[n]`: the most bytes that the
    backward pass by itself holds from node n on.
    """

    def __init__(self, index: GraphIndex, scored: Scored) -> None:
        ops, alone = index.graph.ops, scored.items
        self.index = index
        first = next((p for p, i in enumerate(alone) if i.replica or ops[i.op].phase is not Phase.FORWARD), len(alone))
        forward, backward = alone[:first], alone[first:]
        self.items: list[Item] = [*backward, *(Item(op=i.op, microbatch=1) for i in forward)]
        self.ops: list[Op] = [ops[item.op] for item in self.items]
        self.backward = len(backward)
        curve = scored.memory.bytes[first:]
        self.to_come = [*reversed(tuple(accumulate(reversed(curve), max))), 0]
        self.lazy = [op.role in (Role.VIEW, Role.WAIT) for op in self.ops]
        sequence = [*forward, *self.items, *(Item(op=i.op, microbatch=1) for i in backward)]
        self._read(sequence, first)
        self.unread = self._unread()
        self._add_order()
        self._add_paths()

    def _read(self, sequence: Sequence[Item], offset: int) -> None:
        """Dependencies and memory of the nodes, which are a part of `sequence` that begins at `offset`."""
        flow = resolve(self.index.graph, sequence)
        count = len(self.items)
        self.sources: list[list[int]] = [
            list(dict.fromkeys(s - offset for s in flow.sources[offset + node] if s >= offset)) for node in range(count)
        ]
        self.after: list[list[int]] = [[] for _ in range(count)]
        for node, sources in enumerate(self.sources):
            for source in sources:
                self.after[source].append(node)
        self.sizes: list[int] = []
        self.readers: list[int] = []
        self.lasts: list[bool] = []
        self.reads: list[list[int]] = [[] for _ in range(count)]
        self.makes: list[list[int]] = [[] for _ in range(count)]
        held_at: list[dict[int, int]] = []  # per position: storage -> instance
        for position, item in enumerate(sequence):
            held = self._held(item, flow.sources[position], held_at)
            self._count_reads(position - offset, self._read_by(item, flow.sources[position], sequence, held, held_at))
            self._allocate(position - offset, item, held)
            held_at.append(held)
            if position + 1 == offset:
                self.before = len(self.sizes)

    def _held(self, item: Item, sources: tuple[int, ...], held_at: list[dict[int, int]]) -> dict[int, int]:
        """The instances that an item reads, by storage."""
        graph = self.index.graph
        held: dict[int, int] = {}
        for tensor, source in zip(graph.ops[item.op].inputs, sources, strict=True):
            storage = graph.tensors[tensor].storage
            if source >= 0 and storage in held_at[source]:
                held[storage] = held_at[source][storage]
        return held

    def _read_by(
        self,
        item: Item,
        sources: tuple[int, ...],
        sequence: Sequence[Item],
        held: dict[int, int],
        held_at: list[dict[int, int]],
    ) -> Iterable[int]:
        """Instances that must be there until this item. Views and waits run directly before a reader, so theirs count
        with it; but some collectives read their inputs until their wait."""
        ops = self.index.graph.ops
        if ops[item.op].role is Role.WAIT and ops[sequence[sources[0]].op].kind in READS_UNTIL_WAIT:
            return held_at[sources[0]].values()
        return () if ops[item.op].role in (Role.VIEW, Role.WAIT) else held.values()

    def _count_reads(self, node: int, instances: Iterable[int]) -> None:
        for instance in instances:
            if 0 <= node < len(self.reads):
                self.reads[node].append(instance)
                self.readers[instance] += 1
            elif node >= len(self.reads):
                self.lasts[instance] = True

    def _unread(self) -> list[bool]:
        unread = [False] * len(self.items)
        for node in range(len(self.items) - 1, -1, -1):
            unread[node] = self.ops[node].role is Role.VIEW and all(unread[follower] for follower in self.after[node])
        return unread

    def _allocate(self, node: int, item: Item, held: dict[int, int]) -> None:
        """New instances for the outputs that live in no storage that the item reads."""
        graph = self.index.graph
        for tensor in graph.ops[item.op].outputs:
            storage = graph.tensors[tensor].storage
            if storage not in held and self.index.storage_op[storage] >= 0:
                held[storage] = len(self.sizes)
                self.sizes.append(graph.storages[storage].bytes)
                self.readers.append(0)
                self.lasts.append(False)
                if 0 <= node < len(self.makes):
                    self.makes[node].append(held[storage])

    def _add_order(self) -> None:
        """What must keep its order beside what reads demand: the forward pass, random numbers, effects, and copies
        that would be made too far ahead."""
        chains: dict[str, int] = {}
        for node, op in enumerate(self.ops):
            item = self.items[node]
            keys = []
            if node >= self.backward and not self.lazy[node]:
                keys.append("forward")
            if op.rng and not item.replica:
                keys.append("random")
            if op.effect and not item.replica:
                keys.append(f"accumulate {op.parameter}" if op.role is Role.ACCUMULATE else "effect")
            for key in keys:
                if key in chains:
                    self._wait(node, chains[key])
                chains[key] = node
        self._hold_copies()
        self.waits_for = [len(sources) for sources in self.sources]

    def _hold_copies(self) -> None:
        """A copy waits until the backward pass has come near to its first reader."""
        begins: list[int] = []  # node that first runs each layer's backward, in order
        layer_of = self.index.op_layer
        seen: set[int] = set()
        turn = [0] * self.backward  # per node: how many layers have begun
        for node in range(self.backward):
            item, op = self.items[node], self.ops[node]
            if not item.replica and op.phase is Phase.BACKWARD and not self.lazy[node]:
                layer = layer_of[item.op]
                if layer not in seen:
                    seen.add(layer)
                    begins.append(node)
            turn[node] = len(begins)
        for node in range(self.backward):
            if self.items[node].replica and not self.lazy[node]:
                number = turn[node] - 1 - AHEAD
                if 0 <= number < len(begins) and begins[number] < node:
                    self._wait(node, begins[number])

    def _wait(self, node: int, source: int) -> None:
        if source not in self.sources[node]:
            self.sources[node].append(source)
            self.after[source].append(node)

    def _add_paths(self) -> None:
        self.path_ns = [0] * len(self.items)
        for node in range(len(self.items) - 1, -1, -1):
            op = self.ops[node]
            own = 0 if self.lazy[node] else op.time_ns + op.comm_ns
            self.path_ns[node] = own + max((self.path_ns[follower] for follower in self.after[node]), default=0)
