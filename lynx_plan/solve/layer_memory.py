"""Memory of one layer's choices: bytes at the rows of a stage as a linear function of what is recomputed where.

A row is a moment of an order in which nothing is recomputed: while the original at `position` runs (`running` is
`ORIGINAL`), or while the copy of op `running` runs directly before it, after those of smaller ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.class_facts import Candidate
from lynx_plan.solve.places import Place, dies_where_made
from lynx_plan.solve.score import Scored
from lynx_plan.solve.stage_model import LayerModel

Vector = NDArray[np.float64]
ORIGINAL = 1 << 40
KEEP = -1  # the choice of keeping what only copies read of a candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Moments, an entry each."""

    position: NDArray[np.int64]
    running: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.position)

    def pick(self, chosen: NDArray[np.bool_] | slice) -> Rows:
        return Rows(position=self.position[chosen], running=self.running[chosen])


def rows_of(layers: list[LayerModel], positions: range) -> Rows:
    """The originals at `positions`, and every copy that these layers may make there; in order of time."""
    moments = {(position, ORIGINAL) for position in positions}
    for model in layers:
        for candidate, places in zip(model.facts.candidates, model.places, strict=True):
            moments.update((place.at, candidate.ops[0]) for place in places if place.at in positions)
    ordered = np.array(sorted(moments), dtype=np.int64).reshape(-1, 2)
    return Rows(position=ordered[:, 0].copy(), running=ordered[:, 1].copy())


class BaseMemory:
    """Bytes of `none`, at any rows."""

    def __init__(self, none: Scored, sizes: tuple[int, ...]) -> None:
        self.curve = np.array(none.memory.bytes, dtype=np.float64)
        born = np.zeros(len(self.curve))
        for life in none.flow.lifetimes:
            born[life.start] += sizes[life.storage]
        self.before = self.curve - born

    def at(self, rows: Rows) -> Vector:
        found: Vector = np.where(rows.running == ORIGINAL, self.curve[rows.position], self.before[rows.position])
        return found


class LayerMemory:
    """The choices of a layer: (candidate, place) by number, or (candidate, KEEP), and their bytes at any rows."""

    def __init__(self, model: LayerModel) -> None:
        self.facts = model.facts
        self.places = model.places
        candidates = self.facts.candidates
        self.readers = [
            [i for i, c in enumerate(candidates) if number in c.held_sources] for number in range(len(candidates))
        ]
        self.choices = tuple(
            (number, place)
            for number, candidate in enumerate(candidates)
            for place in [*([KEEP] if candidate.held else []), *range(len(self.places[number]))]
        )
        pieces = [piece for c in candidates for piece in c.read_pieces]
        held = [piece for c in candidates for piece in c.held_pieces]
        self.dropped_from = max((int(piece.forward_end[0]) for piece in [*pieces, *held]), default=-1) + 1
        self.first_place = min((place.at for places in self.places for place in places), default=self.dropped_from)
        self.last_use = max(
            [int(piece.last_read[0]) for piece in pieces] + [self._last_copy(n) for n in range(len(candidates))] + [-1]
        )

    def dropped(self) -> Vector:
        """Per choice: the bytes that it frees between the end of the layer's forward and its first place, less the
        random state that waits for the copy."""
        return np.array(
            [
                -sum(p.bytes for p in self.facts.candidates[n].held_pieces)
                if place == KEEP
                else self.facts.candidates[n].read_bytes - self.facts.candidates[n].state_bytes
                for n, place in self.choices
            ],
            dtype=np.float64,
        )

    def terms(self, rows: Rows) -> Vector:
        """Bytes more than without any choice, [rows, choices]."""
        columns = []
        for number, place in self.choices:
            if place == KEEP:
                columns.append(self._held(number, rows))
            else:
                columns.append(self._copied(number, self.places[number][place], rows) - self._kept(number, rows))
        return np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0))

    def _kept(self, number: int, rows: Rows) -> Vector:
        """What backward reads of a candidate, once forward no longer needs it."""
        total = np.zeros(len(rows))
        for piece in self.facts.candidates[number].read_pieces:
            total += piece.bytes * _within(rows, int(piece.forward_end[0]) + 1, int(piece.last_read[0]))
        return total

    def _held(self, number: int, rows: Rows) -> Vector:
        """What is kept of a candidate for copies of others: until the last place where one may be made."""
        total = np.zeros(len(rows))
        for piece in self.facts.candidates[number].held_pieces:
            total += piece.bytes * _within(rows, int(piece.forward_end[0]) + 1, self._last_copy(number))
        return total

    def _copied(self, number: int, place: Place, rows: Rows) -> Vector:
        """The copy made at `place`: until the last read, or while its readers are made."""
        candidate = self.facts.candidates[number]
        made = _from(rows, place.at, candidate.ops[0])
        total = np.zeros(len(rows))
        for piece in candidate.read_pieces:
            total += piece.bytes * (made & (rows.position <= int(piece.last_read[0])))
        here = made & (rows.position == place.at) & (rows.running != ORIGINAL)
        total += here * self._held_here(number, place, rows)
        if candidate.held and not dies_where_made(self.facts, self.places, number, place):
            later = made & ((rows.position > place.at) | (rows.running == ORIGINAL))
            total += candidate.held_bytes * (later & (rows.position <= self._last_copy(number)))
        passing = candidate.output_bytes - candidate.read_bytes
        passing -= candidate.held_bytes if self.readers[number] else 0
        total += (here & (rows.running == candidate.ops[0])) * passing
        return total + self._state(candidate, place, rows)

    def _held_here(self, number: int, place: Place, rows: Rows) -> Vector:
        """What only copies read, while those are made at the same place."""
        readers = self.readers[number]
        if not readers:
            return np.zeros(len(rows))
        last = max(self.facts.candidates[i].ops[0] for i in readers)
        found: Vector = np.where(rows.running <= last, float(self.facts.candidates[number].held_bytes), 0.0)
        return found

    def _state(self, candidate: Candidate, place: Place, rows: Rows) -> Vector:
        """The random state that an original saves for its copy."""
        if not candidate.state_bytes:
            return np.zeros(len(rows))
        saved = _from(rows, int(candidate.made[0]), -1) & (rows.position >= int(candidate.made[0]))
        used = (rows.position < place.at) | ((rows.position == place.at) & (rows.running <= candidate.ops[0]))
        found: Vector = np.where(saved & used, float(candidate.state_bytes), 0.0)
        return found

    def _last_copy(self, number: int) -> int:
        """The last place where a copy may read what only copies read of this candidate."""
        return max((p.at for i in self.readers[number] for p in self.places[i] if p.on_demand), default=-1)


def _within(rows: Rows, start: int, end: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (rows.position >= start) & (rows.position <= end)
    return found


def _from(rows: Rows, at: int, op: int) -> NDArray[np.bool_]:
    """From the moment on that the copy of `op` begins before the original at `at`."""
    found: NDArray[np.bool_] = (rows.position > at) | ((rows.position == at) & (rows.running >= op))
    return found
