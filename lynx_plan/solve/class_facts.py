"""What the planner knows of one layer class: its candidates, their lifetimes and its windows, per member.

Positions are those of an order in which nothing of this class is recomputed. Arrays have one entry per member.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.model.graph import Op, Phase, Role
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.score import Scored

Positions = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max // 2  # a position after every other
NEGLIGIBLE = 0.002  # storages below this share of a class's saved bytes stay kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A storage that a candidate makes: last forward use, first (`NEVER`) and last (-1) backward read."""

    bytes: int
    forward_end: Positions
    first_read: Positions
    last_read: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A forward op of the class. `ops`: its id in each member. `sources`: candidates that it reads.

    `read`: backward reads it, so it is kept or recomputed; otherwise it matters as a source only.
    `fixed`: it cannot be recomputed, so it can only be kept for those that read it.
    """

    name: str
    ops: tuple[int, ...]
    time_ns: int
    comm_ns: int
    read: bool
    fixed: bool
    output_bytes: int  # of all that it makes, also what nobody reads again
    pieces: tuple[Piece, ...]
    sources: tuple[int, ...]

    @property
    def cost_ns(self) -> int:
        return self.time_ns + self.comm_ns

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWindow:
    """A backward window of the class: its collective in each member, and the compute time that it still takes."""

    launches: tuple[int, ...]  # op ids
    launch: Positions
    wait: Positions
    room_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """`members` ascend; `reference` is the index of the member that stands for all, `followed` those whose next
    layer is a member too (its windows come before their own)."""

    members: tuple[int, ...]
    reference: int
    followed: tuple[bool, ...]
    candidates: tuple[Candidate, ...]  # ascending, so sources come first
    windows: tuple[ClassWindow, ...]  # in order of launch

    @property
    def saved_bytes(self) -> int:
        """What dropping every candidate would free, all members together."""
        return len(self.members) * sum(c.bytes for c in self.candidates if c.read and not c.fixed)


class FactReader:
    """Reads the facts of any class from one order, in which that class recomputes nothing."""

    def __init__(self, candidates: Candidates, scored: Scored) -> None:
        self.c = candidates
        self.index = candidates.index
        self.graph = candidates.index.graph
        self.scored = scored
        self.position = [0] * len(self.graph.ops)
        for position, item in enumerate(scored.items):
            if not item.replica:
                self.position[item.op] = position

    def read(self, members: tuple[int, ...]) -> ClassFacts:
        present = set(members)
        followed = tuple(layer + 1 in present for layer in members)
        inside = [i for i, (layer, known) in enumerate(zip(members, followed, strict=True)) if known and layer]
        reference = inside[len(inside) // 2] if inside else 0
        return ClassFacts(
            members=members,
            reference=reference,
            followed=followed,
            candidates=self._candidates(members, reference),
            windows=self._windows(members, reference),
        )

    def _candidates(self, members: tuple[int, ...], reference: int) -> tuple[Candidate, ...]:
        home = members[reference]
        chosen = self._chosen(home)
        layers = [self.graph.layers[layer].ops for layer in members]
        inside = [op for op in chosen if self.index.op_layer[op] == home]
        counterparts = {op: tuple([layer[self.index.op_slot[op]] for layer in layers]) for op in inside}
        for op in chosen:
            if op not in counterparts:
                ops = self._outside(op, [r for r in inside if self.c.droppable(r)], layers)
                if len(set(ops)) == len(ops):  # else all members share it: it is there whatever the policy says
                    counterparts[op] = ops
        number = {op: i for i, op in enumerate(sorted(counterparts))}
        return tuple(self._candidate(op, counterparts[op], number, own=op in inside) for op in number)

    def _candidate(self, op: int, ops: tuple[int, ...], number: dict[int, int], *, own: bool) -> Candidate:
        record = self.graph.ops[op]
        read = self.c.read[op] and own
        fixed = not (self.c.droppable(op) and own)
        return Candidate(
            name=record.name,
            ops=ops,
            time_ns=record.time_ns,
            comm_ns=record.comm_ns,
            read=read,
            fixed=fixed,
            output_bytes=self._bytes(op),
            pieces=self._pieces(ops, read),
            sources=() if fixed else tuple(number[s] for s in self.c.sources[op] if s in number),
        )

    def _chosen(self, layer: int) -> list[int]:
        """Candidate ops of a layer, ascending: worth dropping, what those need, and what must be kept for those."""
        c = self.c
        droppable = [op for op in self.graph.layers[layer].ops if self.graph.ops[op].phase is Phase.FORWARD]
        droppable = [op for op in droppable if c.droppable(op)]
        total = sum(self._bytes(op) for op in droppable if c.read[op])
        small = {op for op in droppable if c.read[op] and self._bytes(op) < NEGLIGIBLE * total}
        closure = c.closure(op for op in droppable if op not in small)
        found = set(closure)
        for op in closure:
            found.update(s for s in c.sources[op] if not c.read[s])
        return sorted(found)

    def _bytes(self, op: int) -> int:
        return sum(self.graph.storages[s].bytes for s in self.c.pieces[op])

    def _outside(self, op: int, readers: list[int], layers: list[tuple[int, ...]]) -> tuple[int, ...]:
        """The counterparts, one per member, of an op that a layer reads from outside."""
        reader = next(r for r in readers if op in self.c.sources[r])
        slot, place = self.index.op_slot[reader], self.c.sources[reader].index(op)
        return tuple(self.c.sources[layer[slot]][place] for layer in layers)

    def _pieces(self, ops: tuple[int, ...], read: bool) -> tuple[Piece, ...]:
        """The storages that matter after forward: those that backward reads, or all that other candidates may read."""
        first = self.c.pieces[ops[0]]
        pieces = []
        for place, storage in enumerate(first):
            spans = [self._span(self.c.pieces[op][place]) for op in ops]
            forward_end, first_read, last_read = (
                np.array(column, dtype=np.int64) for column in zip(*spans, strict=True)
            )
            if (last_read >= 0).any() or not read:
                size = self.graph.storages[storage].bytes
                pieces.append(Piece(bytes=size, forward_end=forward_end, first_read=first_read, last_read=last_read))
        return tuple(pieces)

    def _span(self, storage: int) -> tuple[int, int, int]:
        """Last forward use, first and last backward read."""
        forward, reads = self.position[self.index.storage_op[storage]], []
        for tensor in self.index.storage_tensors[storage]:
            for op in self.index.consumers[tensor]:
                if self.graph.ops[op].phase is Phase.FORWARD:
                    forward = max(forward, self.position[op])
                else:
                    reads.append(self.position[op])
        return forward, min(reads, default=NEVER), max(reads, default=-1)

    def _windows(self, members: tuple[int, ...], reference: int) -> tuple[ClassWindow, ...]:
        found = []
        for launch in self.graph.layers[members[reference]].ops:
            op = self.graph.ops[launch]
            if op.role is not Role.COLLECTIVE or op.phase is Phase.FORWARD:
                continue
            slot = self.index.op_slot[launch]
            launches = tuple([self.graph.layers[layer].ops[slot] for layer in members])
            waits = [self._wait(one) for one in launches]
            if -1 not in waits:
                found.append(
                    ClassWindow(
                        launches=launches,
                        launch=np.array([self.position[one] for one in launches], dtype=np.int64),
                        wait=np.array(waits, dtype=np.int64),
                        room_ns=self._room(op, waits[reference]),
                    )
                )
        return tuple(sorted(found, key=lambda window: int(window.launch[reference])))

    def _wait(self, launch: int) -> int:
        """Position of the first wait for a collective, -1 without one."""
        outputs = self.graph.ops[launch].outputs
        readers = [r for t in outputs for r in self.index.consumers[t] if self.graph.ops[r].role is Role.WAIT]
        return min((self.position[r] for r in readers), default=-1)

    def _room(self, op: Op, wait: int) -> int:
        """Compute time that fits while the wait blocks, at the speed that contention leaves."""
        start, end = self.scored.clocks.compute[wait]
        return (end - start) * max(0, op.comm_ns - op.steal_ns) // max(1, op.comm_ns)
