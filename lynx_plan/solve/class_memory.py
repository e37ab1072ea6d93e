"""Memory of a class's policies: bytes at every position as a linear function of what is recomputed where.

Two sorts of rows, both in positions of an order in which the class recomputes nothing. `at` rows: while the
original at a position runs. `before` rows: while copies run directly before it, one row per copy of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.class_facts import NEVER, ClassFacts, Positions
from lynx_plan.solve.places import Place, first_read
from lynx_plan.solve.score import Scored

Vector = NDArray[np.float64]
KEEP = -1  # the choice of keeping a candidate that backward does not read


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """Bytes: `base` + `matrix` @ choices, a row per position that can be the peak.

    `choices`: (candidate, place) by number, or (candidate, KEEP); without any choice a read candidate is kept.
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
        kept = reader.kept(number)
        if not candidate.read:
            choices.append((number, KEEP))
            vectors.append(kept)
        for place in range(len(places[number])):
            choices.append((number, place))
            copied = reader.copied(number, places[number][place])
            vectors.append(copied - kept if candidate.read else copied)
    matrix = np.stack(vectors, axis=1) if vectors else np.zeros((len(base), 0))
    base, matrix = _undominated(base, matrix)
    return MemoryTerms(base=base, matrix=matrix, choices=tuple(choices))


class _Reader:
    """Lifetimes of kept storages and of copies, at every row."""

    def __init__(self, facts: ClassFacts, places: tuple[tuple[Place, ...], ...], positions: range) -> None:
        self.facts = facts
        self.places = places
        self.at = np.arange(positions.start, positions.stop, dtype=np.int64)
        self.last_reader = [
            max((i for i, c in enumerate(facts.candidates) if number in c.sources), default=number)
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
        """Bytes of the candidate's kept storages of all members, once forward no longer needs them."""
        candidate = self.facts.candidates[number]
        rows = np.concatenate([self.at, self.before])
        total = np.zeros(len(rows))
        for piece in candidate.pieces:
            end = piece.last_read if candidate.read else self._last_copy(number, piece.last_read)
            total += piece.bytes * _alive(piece.forward_end + 1, end, rows)
        return total

    def copied(self, number: int, place: Place) -> Vector:
        """Bytes of all members' copies made at `place`. One that only copies read lives while those are made."""
        candidate = self.facts.candidates[number]
        start = self._starts(number, place)
        at, before = np.zeros(len(self.at)), np.zeros(len(self.before))
        here = np.isin(self.before, start)
        made = here & (self.running >= number)
        if candidate.read:
            for piece in candidate.pieces:
                at += piece.bytes * _alive(start, piece.last_read, self.at)
                before += piece.bytes * _alive(start + 1, piece.last_read, self.before)
        else:
            made &= self.running <= self.last_reader[number]
        before += made * candidate.bytes
        before += (here & (self.running == number)) * (candidate.output_bytes - candidate.bytes)
        return np.concatenate([at, before])

    def _starts(self, number: int, place: Place) -> Positions:
        """Where the copy is made in each member; one without the window makes it on demand."""
        return np.where(place.positions == NEVER, self.needed[number], place.positions)

    def _last_copy(self, number: int, last_read: Positions) -> Positions:
        """The last place where a copy may read what is kept for copies only."""
        readers = [i for i, c in enumerate(self.facts.candidates) if number in c.sources]
        uses = [place.positions for i in readers for place in self.places[i] if place.on_demand]
        latest: Positions = np.maximum.reduce([last_read, *uses])
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


def _undominated(base: Vector, matrix: Vector) -> tuple[Vector, Vector]:
    """Drop rows that another row with no smaller base and coefficients implies."""
    order = np.lexsort((base, *matrix.T))
    base, matrix = base[order], matrix[order]
    last = np.ones(len(base), dtype=bool)  # of rows with the same coefficients, the one of the largest base
    last[:-1] = (matrix[1:] != matrix[:-1]).any(axis=1)
    base, matrix = base[last], matrix[last]
    keep = np.ones(len(base), dtype=bool)
    for i in range(len(base)):
        larger = (base >= base[i]) & (matrix >= matrix[i]).all(axis=1)
        keep[i] = larger.sum() == 1  # itself
    return base[keep], matrix[keep]
