"""What the planner knows of one layer class: its candidates, their lifetimes and its windows, per member.

Positions are those of an order in which nothing of this class is recomputed. Arrays have one entry per member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.analyze.replay import replay_ns, save_ns, state_bytes
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
    """A forward op of the class. `ops`: its id in each member. `fixed`: it cannot be recomputed.

    What backward reads of it (`read`) is kept or recomputed. What only copies of other candidates read (`held`) is
    kept for them, recomputed, or not there. `sources`: candidates that it reads; `held_sources`: those of which it
    reads something held. `made`: position of the original in each member, which saves `state_bytes` for its copy
    (random ops only).
    """

    name: str
    ops: tuple[int, ...]
    time_ns: int
    comm_ns: int
    fixed: bool
    output_bytes: int  # of all that it makes, also what nobody reads again
    read_pieces: tuple[Piece, ...]
    held_pieces: tuple[Piece, ...]
    sources: tuple[int, ...]
    held_sources: tuple[int, ...]
    made: Positions
    state_bytes: int

    @property
    def cost_ns(self) -> int:
        return self.time_ns + self.comm_ns

    @property
    def read(self) -> bool:
        return bool(self.read_pieces)

    @property
    def held(self) -> bool:
        return bool(self.held_pieces)

    @property
    def read_bytes(self) -> int:
        return sum(piece.bytes for piece in self.read_pieces)

    @property
    def held_bytes(self) -> int:
        return sum(piece.bytes for piece in self.held_pieces)


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
    layer is a member too (its windows come before their own). `borrowed`: for the others, the last window with room
    of the next layer, which is of another class; None without one."""

    members: tuple[int, ...]
    reference: int
    followed: tuple[bool, ...]
    borrowed: tuple[ClassWindow | None, ...]
    candidates: tuple[Candidate, ...]  # ascending, so sources come first
    windows: tuple[ClassWindow, ...]  # in order of launch

    @property
    def saved_bytes(self) -> int:
        """What dropping every candidate would free, all members together."""
        return len(self.members) * sum(candidate.read_bytes for candidate in self.candidates)


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
            borrowed=tuple(
                None if known else self._roomy(layer + 1) for layer, known in zip(members, followed, strict=True)
            ),
            candidates=self._candidates(members, reference),
            windows=self.windows(members, reference),
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
        copied = {storage for op in inside if self.c.droppable(op) for storage in self.c.reads[op]}
        return tuple(self._candidate(op, counterparts[op], number, copied, home) for op in number)

    def _candidate(
        self, op: int, ops: tuple[int, ...], number: dict[int, int], copied: set[int], home: int
    ) -> Candidate:
        """`copied`: storages that some candidate of the layer `home` reads."""
        c, record = self.c, self.graph.ops[op]
        fixed = self.index.op_layer[op] != home or not c.droppable(op)
        makers = {} if fixed else {s: c.index.storage_op[s] for s in c.reads[op]}
        held = [number[maker] for s, maker in makers.items() if maker in number and not c.saved[s]]
        loose = [number[s] for s in makers.values() if s in number and c.droppable(s)]
        return Candidate(
            name=record.name,
            ops=ops,
            time_ns=record.time_ns + (replay_ns(self.graph) + save_ns(self.graph) if record.rng else 0),
            comm_ns=record.comm_ns,
            fixed=fixed,
            output_bytes=self._bytes(op),
            read_pieces=() if fixed else self._pieces(op, ops, lambda s: c.saved[s]),
            held_pieces=self._pieces(op, ops, lambda s: s in copied and not c.saved[s]),
            sources=tuple(sorted({*held, *loose})),
            held_sources=tuple(sorted(set(held))),
            made=np.array([self.position[one] for one in ops], dtype=np.int64),
            state_bytes=state_bytes(self.graph) if record.rng else 0,
        )

    def _chosen(self, layer: int) -> list[int]:
        """Candidate ops of a layer, ascending: worth dropping, what those need, and what must be kept for those."""
        c = self.c
        droppable = [op for op in self.graph.layers[layer].ops if self.graph.ops[op].phase is Phase.FORWARD]
        droppable = [op for op in droppable if c.droppable(op)]
        total = sum(self._saved_bytes(op) for op in droppable)
        small = {op for op in droppable if self._saved_bytes(op) < NEGLIGIBLE * total and not self._helps(op)}
        found = set(c.closure(op for op in droppable if op not in small))
        for op in list(found):
            found.update(self.index.storage_op[s] for s in c.reads[op] if not c.saved[s])
        return sorted(found)

    def _saved_bytes(self, op: int) -> int:
        return sum(self.graph.storages[s].bytes for s in self.c.pieces[op] if self.c.saved[s])

    def _helps(self, op: int) -> bool:
        """It makes something that backward does not read, but other forward ops do."""
        forward = (s for s in self.c.pieces[op] if not self.c.saved[s])
        return any(self.index.consumers[t] for s in forward for t in self.index.storage_tensors[s])

    def _bytes(self, op: int) -> int:
        return sum(self.graph.storages[s].bytes for s in self.c.pieces[op])

    def _outside(self, op: int, readers: list[int], layers: list[tuple[int, ...]]) -> tuple[int, ...]:
        """The counterparts, one per member, of an op that a layer reads from outside."""
        reader = next(r for r in readers if op in self.c.sources[r])
        slot, place = self.index.op_slot[reader], self.c.sources[reader].index(op)
        return tuple(self.c.sources[layer[slot]][place] for layer in layers)

    def _pieces(self, op: int, ops: tuple[int, ...], wanted: Callable[[int], bool]) -> tuple[Piece, ...]:
        """The wanted ones of the storages that `op` makes, with the lifetimes of their counterparts in `ops`."""
        pieces = []
        for place, storage in enumerate(self.c.pieces[op]):
            if not wanted(storage):
                continue
            spans = [self._span(self.c.pieces[one][place]) for one in ops]
            forward_end, first_read, last_read = (
                np.array(column, dtype=np.int64) for column in zip(*spans, strict=True)
            )
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

    def windows(self, members: tuple[int, ...], reference: int = 0) -> tuple[ClassWindow, ...]:
        """The backward windows of these layers, with the room of the reference member's."""
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

    def _roomy(self, layer: int) -> ClassWindow | None:
        """The last backward window of a layer that has room."""
        if layer >= len(self.graph.layers):
            return None
        windows = [window for window in self.windows((layer,), 0) if window.room_ns > 0]
        return max(windows, key=lambda window: int(window.wait[0]), default=None)

    def _wait(self, launch: int) -> int:
        """Position of the first wait for a collective, -1 without one."""
        outputs = self.graph.ops[launch].outputs
        readers = [r for t in outputs for r in self.index.consumers[t] if self.graph.ops[r].role is Role.WAIT]
        return min((self.position[r] for r in readers), default=-1)

    def _room(self, op: Op, wait: int) -> int:
        """Compute time that fits while the wait blocks, less what contention takes of it."""
        start, end = self.scored.clocks.compute[wait]
        begun, done = self.scored.clocks.comm[self.position[op.id]]
        span = op.steal_span_ns or op.comm_ns
        contended = max(0, min(end, done, begun + span) - max(start, begun))
        return max(0, end - start - contended * op.steal_ns // max(1, span))
