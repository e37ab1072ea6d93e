"""Memory of a class's policies: bytes at every position as a linear function of what is recomputed where.

Two sorts of rows, both in positions of an order in which the class recomputes nothing. `at` rows: while the
original at a position runs. `before` rows: while copies run directly before it, one row per copy of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.class_facts import NEVER, ClassFacts, Positions
from lynx_plan.solve.places import Place, dies_where_made, first_read
from lynx_plan.solve.row_pruning import undominated
from lynx_plan.solve.score import Scored

Vector = NDArray[np.float64]
KEEP = -1  # the choice of keeping what only copies read of a candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """Bytes: `base` + `matrix` @ choices, a row per position that can be the peak.

    `choices`: (candidate, place) by number, or (candidate, KEEP). Without a choice, what backward reads of a
    candidate is kept, and what only copies read of it is not.
    """

    base: Vector
    matrix: Vector
    choices: tuple[tuple[int, int], ...]


def memory_terms(
    facts: ClassFacts, places: tuple[tuple[Place, ...], ...], scored: Scored, positions: range, sizes: tuple[int, ...]
) -> MemoryTerms:
    """The rows over `positions` of `scored`, in which the class recomputes nothing; `sizes`: bytes by storage."""
    reader = _Reader(facts, places, positions)
    curve = np.array(scored.memory.bytes, dtype=np.float64)
    born = np.zeros(len(curve))
    for life in scored.flow.lifetimes:
        born[life.start] += sizes[life.storage]
    base = np.concatenate([curve[reader.at], (curve - born)[reader.before]])
    choices, vectors = [], []
    for number, candidate in enumerate(facts.candidates):
        if candidate.held:
            choices.append((number, KEEP))
            vectors.append(reader.held(number))
        for place in range(len(places[number])):
            choices.append((number, place))
            vectors.append(reader.copied(number, places[number][place]) - reader.kept(number))
    matrix = np.stack(vectors, axis=1) if vectors else np.zeros((len(base), 0))
    base, matrix = undominated(base, matrix)
    return MemoryTerms(base=base, matrix=matrix, choices=tuple(choices))


class _Reader:
    """Lifetimes of kept storages and of copies, at every row."""

    def __init__(self, facts: ClassFacts, places: tuple[tuple[Place, ...], ...], positions: range) -> None:
        self.facts = facts
        self.places = places
        self.at = np.arange(positions.start, positions.stop, dtype=np.int64)
        self.readers = [
            [i for i, c in enumerate(facts.candidates) if number in c.held_sources]
            for number in range(len(facts.candidates))
        ]
        self.needed = _first_needs(facts)
        rows = {
            (start, number)
            for number, own in enumerate(places)
            for place in own
            for start in self._starts(number, place).tolist()
            if positions.start <= start < positions.stop
        }
        self.before = np.array([start for start, _ in sorted(rows)], dtype=np.int64)
        self.running = np.array([number for _, number in sorted(rows)], dtype=np.int64)

    def kept(self, number: int) -> Vector:
        """Bytes that backward reads of a candidate, all members, once forward no longer needs them."""
        rows = np.concatenate([self.at, self.before])
        total = np.zeros(len(rows))
        for piece in self.facts.candidates[number].read_pieces:
            total += piece.bytes * _alive(piece.forward_end + 1, piece.last_read, rows)
        return total

    def held(self, number: int) -> Vector:
        """Bytes kept of a candidate, all members, for copies of others: until the last place where one may be made."""
        rows = np.concatenate([self.at, self.before])
        total = np.zeros(len(rows))
        for piece in self.facts.candidates[number].held_pieces:
            total += piece.bytes * _alive(piece.forward_end + 1, self._last_copy(number), rows)
        return total

    def copied(self, number: int, place: Place) -> Vector:
        """Bytes of the copies made at `place`, all members: until the last read, or while their readers are made."""
        candidate = self.facts.candidates[number]
        start = self._starts(number, place)
        at, before = np.zeros(len(self.at)), np.zeros(len(self.before))
        for piece in candidate.read_pieces:
            at += piece.bytes * _alive(start, piece.last_read, self.at)
            before += piece.bytes * _alive(start + 1, piece.last_read, self.before)
        if candidate.held and not dies_where_made(self.facts, self.places, number, place):
            at += candidate.held_bytes * _alive(start, self._last_copy(number), self.at)
            before += candidate.held_bytes * _alive(start + 1, self._last_copy(number), self.before)
        here = np.isin(self.before, start) & (self.running >= number)
        before += here * candidate.read_bytes
        before += (here & (self.running <= max(self.readers[number], default=-1))) * candidate.held_bytes
        passing = candidate.output_bytes - candidate.read_bytes - (candidate.held_bytes if self.readers[number] else 0)
        before += (here & (self.running == number)) * passing
        if candidate.state_bytes:
            at += candidate.state_bytes * _alive(candidate.made, start - 1, self.at)
            before += candidate.state_bytes * _alive(candidate.made + 1, start - 1, self.before)
            before += (here & (self.running <= number)) * candidate.state_bytes
        return np.concatenate([at, before])

    def _starts(self, number: int, place: Place) -> Positions:
        """Where the copy is made in each member; one without the window makes it on demand."""
        return np.where(place.positions == NEVER, self.needed[number], place.positions)

    def _last_copy(self, number: int) -> Positions:
        """The last place where a copy may read what only copies read of this candidate."""
        nowhere = np.full(len(self.facts.members), -1, dtype=np.int64)
        uses = [p.positions for i in self.readers[number] for p in self.places[i] if p.on_demand]
        latest: Positions = np.maximum.reduce([nowhere, *uses])
        return latest


def _first_needs(facts: ClassFacts) -> list[Positions]:
    """Where each candidate may first be needed on demand: at its own first read, or at that of one made from it."""
    needs = [first_read(candidate) for candidate in facts.candidates]
    for number in range(len(needs) - 1, -1, -1):
        for source in facts.candidates[number].sources:
            needs[source] = np.minimum(needs[source], needs[number])
    return needs


def _alive(start: Positions, end: Positions, at: Positions) -> Vector:
    """How many of the intervals start..end (both included) hold each position."""
    valid = end >= start
    begun = np.searchsorted(np.sort(start[valid]), at, side="right")
    ended = np.searchsorted(np.sort(end[valid]), at, side="left")
    return (begun - ended).astype(np.float64)
