"""Who reads what in an order, and how long each storage instance lives: the meaning of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph, Op, Role, StorageKind
from lynx_plan.model.program import Item

READS_UNTIL_WAIT = ("all_gather", "reduce_scatter", "all_to_all")  # kinds of collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """One instance of an activation storage: alive at the positions `start` to `end`, both included."""

    storage: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """A generator's state, saved by the original of random op `op` at `start`; its last copy at `end` frees it."""

    op: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """`sources`: per position, per op input, the position that produced the value read (-1: a graph input).

    `lifetimes` are those of activation storages only, ordered by start; `states` those of saved random states.
    """

    sources: tuple[tuple[int, ...], ...]
    lifetimes: tuple[Lifetime, ...]
    states: tuple[RandomState, ...] = ()


def resolve(graph: CostGraph, items: Sequence[Item]) -> Flow:
    """Resolve every read to the latest copy of its producer (same microbatch), and derive lifetimes.

    An output in the storage of one of its op's inputs (a view, a wait, an in-place op) belongs to that input's
    instance; every other output allocates. A collective of `READS_UNTIL_WAIT` reads its inputs until its wait; the
    others copy them at their launch. `graph.outputs` live to the end. Raises AnswerNo where an input
    has no producer before its reader, or a random op's copy no original before it. O(items x inputs).
    """
    return _Resolver(graph, items).run()


class _Resolver:
    """The state of one pass over an order."""

    def __init__(self, graph: CostGraph, items: Sequence[Item]) -> None:
        self.graph = graph
        self.items = items
        self.latest: dict[tuple[int, int], int] = {}  # (op, microbatch) -> position of its latest copy
        self.outputs: list[dict[int, int]] = []  # per position: storage -> instance, of the item's outputs
        self.in_flight: dict[int, tuple[int, ...]] = {}  # position of a collective -> instances it reads
        self.external: dict[tuple[int, int], int] = {}  # (storage, microbatch) of a graph input -> instance
        self.storages: list[int] = []  # per instance
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.drawn: dict[tuple[int, int], int] = {}  # (random op, microbatch) -> position of its original
        self.replayed: dict[tuple[int, int], int] = {}  # the same -> position of its last copy

    def run(self) -> Flow:
        sources = tuple([self.step(position, item) for position, item in enumerate(self.items)])
        self.keep_graph_outputs()
        lifetimes = [
            Lifetime(storage=storage, start=start, end=end)
            for storage, start, end in zip(self.storages, self.starts, self.ends, strict=True)
        ]
        lifetimes.sort(key=lambda life: (life.start, life.storage))
        states = [
            RandomState(op=op, start=self.drawn[op, microbatch], end=end)
            for (op, microbatch), end in self.replayed.items()
        ]
        states.sort(key=lambda state: state.start)
        return Flow(sources=sources, lifetimes=tuple(lifetimes), states=tuple(states))

    def step(self, position: int, item: Item) -> tuple[int, ...]:
        """Resolve one item's reads, extend what it reads, allocate what it makes; its sources."""
        graph, ends = self.graph, self.ends
        op = graph.ops[item.op]
        if item.replica and op.effect:
            raise AnswerNo(f"'{op.name}' changes state outside the graph, so it cannot run twice", where=str(item))
        if op.rng:
            self.draw(op, position, item)
        sources: list[int] = []
        read: dict[int, int] = {}  # storage -> instance
        for tensor in op.inputs:
            source, instance = self.source(tensor, position, item)
            sources.append(source)
            if instance >= 0:
                read[graph.tensors[tensor].storage] = instance
                ends[instance] = position
        made: dict[int, int] = {}
        for tensor in op.outputs:
            storage = graph.tensors[tensor].storage
            if storage in read:
                made[storage] = read[storage]
            elif storage not in made and graph.storages[storage].kind is StorageKind.ACTIVATION:
                made[storage] = self.allocate(storage, position)
        if op.kind in READS_UNTIL_WAIT:
            self.in_flight[position] = tuple(read.values())
        if op.role is Role.WAIT:
            for instance in self.in_flight.get(sources[0], ()):
                ends[instance] = position
        self.outputs.append(made)
        self.latest[(item.op, item.microbatch)] = position
        return tuple(sources)

    def draw(self, op: Op, position: int, item: Item) -> None:
        """A random op: its original saves the generator's state for its copies."""
        key = (item.op, item.microbatch)
        if not item.replica:
            self.drawn[key] = position
        elif key in self.drawn:
            self.replayed[key] = position
        else:
            raise AnswerNo(
                f"'{op.name}' draws random numbers again at position {position} before it has drawn any",
                where=str(item),
                hint="run the original earlier in the order",
            )

    def source(self, tensor: int, position: int, item: Item) -> tuple[int, int]:
        """The position that produced the value, and its storage instance (-1 if static)."""
        record = self.graph.tensors[tensor]
        if record.producer < 0:
            if self.graph.storages[record.storage].kind is not StorageKind.ACTIVATION:
                return -1, -1
            return -1, self.external_instance(record.storage, item.microbatch)
        found = self.latest.get((record.producer, item.microbatch))
        if found is None:
            raise AnswerNo(
                f"'{self.graph.ops[item.op].name}' at position {position} reads '{record.name}' before "
                f"'{self.graph.ops[record.producer].name}' has run",
                where=str(item),
                hint="run the producer earlier in the order",
            )
        return found, self.outputs[found].get(record.storage, -1)

    def external_instance(self, storage: int, microbatch: int) -> int:
        """The instance of an activation that is a graph input: alive from the start."""
        key = (storage, microbatch)
        if key not in self.external:
            self.external[key] = self.allocate(storage, 0)
        return self.external[key]

    def allocate(self, storage: int, position: int) -> int:
        self.storages.append(storage)
        self.starts.append(position)
        self.ends.append(position)
        return len(self.storages) - 1

    def keep_graph_outputs(self) -> None:
        microbatches = sorted({microbatch for _, microbatch in self.latest})
        for tensor in self.graph.outputs:
            record = self.graph.tensors[tensor]
            for microbatch in microbatches:
                found = self.latest.get((record.producer, microbatch))
                instance = -1 if found is None else self.outputs[found].get(record.storage, -1)
                if instance >= 0:
                    self.ends[instance] = len(self.items) - 1
