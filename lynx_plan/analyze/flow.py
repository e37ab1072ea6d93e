"""Who reads what in an order, and how long each storage instance lives: the meaning of a program."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lynx_plan.errors import AnswerNo
from lynx_plan.model.graph import CostGraph, Op, Role, StorageKind
from lynx_plan.model.program import Item

READS_UNTIL_WAIT = ("all_gather", "reduce_scatter", "all_to_all")  # kinds of collectives


class Lifetime(NamedTuple):
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


def resolve(graph: CostGraph, items: Sequence[Item], starts: Sequence[int] = (0,)) -> Flow:
    """Resolve every read to the latest copy of its producer (same microbatch), and derive lifetimes.

    An output in the storage of one of its op's inputs (a view, a wait, an in-place op) belongs to that input's
    instance; every other output allocates. A collective of `READS_UNTIL_WAIT` reads its inputs until its wait; the
    others copy them at their launch. `graph.outputs` live to the end of the part that makes them, and graph inputs that
    are memory from the beginning of the part that reads them first; `starts`: where the parts of a step begin. Raises
    AnswerNo where an input has no producer before its reader, or a random op's copy no original before it.
    O(items x inputs).
    """
    return _Resolver(graph, items, starts).run()


class _OpFacts(NamedTuple):
    """`reads`: tensor, its producer and its storage, per input; `writes`: storage and whether it is an activation, per
    output; `special`: it needs a look beyond these."""

    reads: tuple[tuple[int, int, int], ...]
    writes: tuple[tuple[int, bool], ...]
    special: bool


_last: list[tuple[CostGraph, tuple[_OpFacts, ...]]] = []  # of the graph that was resolved last: searches resolve often


def _facts_of(graph: CostGraph) -> tuple[_OpFacts, ...]:
    """Per op what resolving needs."""
    if not _last or _last[0][0] is not graph:
        _last[:] = [(graph, tuple(_op_facts(graph, op) for op in graph.ops))]
    return _last[0][1]


def _op_facts(graph: CostGraph, op: Op) -> _OpFacts:
    tensors, storages = graph.tensors, graph.storages
    outputs = (tensors[t].storage for t in op.outputs)
    return _OpFacts(
        reads=tuple((t, tensors[t].producer, tensors[t].storage) for t in op.inputs),
        writes=tuple((s, storages[s].kind is StorageKind.ACTIVATION) for s in outputs),
        special=op.effect or op.rng or op.kind in READS_UNTIL_WAIT or op.role is Role.WAIT,
    )


class _Resolver:
    """The state of one pass over an order."""

    def __init__(self, graph: CostGraph, items: Sequence[Item], starts: Sequence[int]) -> None:
        self.graph = graph
        self.starts_of_parts = starts
        self.facts = _facts_of(graph)
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
        instances = zip(self.starts, self.storages, self.ends, strict=True)
        lifetimes = [Lifetime(storage, start, end) for start, storage, end in sorted(instances)]
        states = [
            RandomState(op=op, start=self.drawn[op, microbatch], end=end)
            for (op, microbatch), end in self.replayed.items()
        ]
        states.sort(key=lambda state: state.start)
        return Flow(sources=sources, lifetimes=tuple(lifetimes), states=tuple(states))

    def step(self, position: int, item: Item) -> tuple[int, ...]:
        """Resolve one item's reads, extend what it reads, allocate what it makes; its sources."""
        ends, latest, outputs, microbatch = self.ends, self.latest, self.outputs, item.microbatch
        facts = self.facts[item.op]
        if facts.special:
            self.check(position, item)
        sources: list[int] = []
        read: dict[int, int] = {}  # storage -> instance
        for tensor, producer, storage in facts.reads:
            source = latest.get((producer, microbatch), -1) if producer >= 0 else -1
            if source >= 0:
                instance = outputs[source].get(storage, -1)
            else:
                instance = self.external_instance(tensor, position, item)
            sources.append(source)
            if instance >= 0:
                read[storage] = instance
                ends[instance] = position
        made: dict[int, int] = {}
        for storage, allocates in facts.writes:
            if storage in read:
                made[storage] = read[storage]
            elif allocates and storage not in made:
                made[storage] = self.allocate(storage, position)
        if facts.special:
            self.in_flight_until_wait(position, item, sources, read)
        outputs.append(made)
        latest[item.op, microbatch] = position
        return tuple(sources)

    def check(self, position: int, item: Item) -> None:
        """What may run only once, and random draws."""
        op = self.graph.ops[item.op]
        if item.replica and op.effect:
            raise AnswerNo(f"'{op.name}' changes state outside the graph, so it cannot run twice", where=str(item))
        if op.rng:
            self.draw(op, position, item)

    def in_flight_until_wait(self, position: int, item: Item, sources: list[int], read: dict[int, int]) -> None:
        """Some collectives read their inputs until their wait."""
        op = self.graph.ops[item.op]
        if op.kind in READS_UNTIL_WAIT:
            self.in_flight[position] = tuple(read.values())
        if op.role is Role.WAIT:
            for instance in self.in_flight.get(sources[0], ()):
                self.ends[instance] = position

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

    def external_instance(self, tensor: int, position: int, item: Item) -> int:
        """The storage instance of a graph input: -1 if static, else alive from the start."""
        record = self.graph.tensors[tensor]
        if record.producer >= 0:
            raise AnswerNo(
                f"'{self.graph.ops[item.op].name}' at position {position} reads '{record.name}' before "
                f"'{self.graph.ops[record.producer].name}' has run",
                where=str(item),
                hint="run the producer earlier in the order",
            )
        if self.graph.storages[record.storage].kind is not StorageKind.ACTIVATION:
            return -1
        key = (record.storage, item.microbatch)
        if key not in self.external:
            part = bisect_right(self.starts_of_parts, position) - 1
            self.external[key] = self.allocate(record.storage, self.starts_of_parts[part])
        return self.external[key]

    def allocate(self, storage: int, position: int) -> int:
        self.storages.append(storage)
        self.starts.append(position)
        self.ends.append(position)
        return len(self.storages) - 1

    def end_of_part(self, position: int) -> int:
        """The last position of the part that holds this one."""
        following = bisect_right(self.starts_of_parts, position)
        ends = (*self.starts_of_parts, len(self.items))
        return ends[following] - 1

    def keep_graph_outputs(self) -> None:
        microbatches = sorted({microbatch for _, microbatch in self.latest})
        for tensor in self.graph.outputs:
            record = self.graph.tensors[tensor]
            for microbatch in microbatches:
                found = self.latest.get((record.producer, microbatch))
                instance = -1 if found is None else self.outputs[found].get(record.storage, -1)
                if instance >= 0 and found is not None:
                    self.ends[instance] = max(self.ends[instance], self.end_of_part(found))
