"""HEU's MILP of one layer class: what its layers keep, what they recompute, and where.

Columns: x[op,place] = 1 if the op is recomputed there (a read op without one is kept); keep[op] for ops that backward
does not read but copies do; excess[window], the time placed in a window beyond its room. MiB and microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.class_facts import NEVER, ClassFacts
from lynx_plan.solve.milp import MIB, US_NS, Milp, MilpResult
from lynx_plan.solve.order import Placement
from lynx_plan.solve.places import Place, first_read, places_of

TIE_BREAK = 1e-3  # weight of recompute time that is hidden: less is better, all else equal
PEAK_WEIGHT = 1e3  # per MiB, when the peak is what is minimised: time only breaks ties

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswer:
    """A policy of the class: per candidate the place of its copy (None: kept, or not needed)."""

    result: MilpResult
    chosen: tuple[Place | None, ...]
    peak_bytes: int  # by the MILP's memory rows


class ClassMilp:
    """Built once per class; solved under one or more budgets."""

    def __init__(self, facts: ClassFacts, memory: tuple[int, ...], positions: range, *, windows_open: bool) -> None:
        """`memory`: activation bytes by position with this class all kept; `positions`: where memory is bounded."""
        self.facts = facts
        self.places = places_of(facts, windows_open=windows_open)
        self.milp = Milp()
        self.x: list[list[int]] = []
        self.keep: dict[int, int] = {}
        self.over = self.milp.continuous("over_budget", upper=0.0)
        self._columns(windows_open=windows_open)
        self._dependency_rows()
        if windows_open:
            self._capacity_rows()
        self.base, self.matrix, self.memory_columns = self._memory_terms(memory, positions)
        self.memory_rows = self._memory_rows()

    def solve(self, budget_bytes: int, *, least_peak: bool = False) -> ClassAnswer | None:
        """The policy of least exposed time whose memory stays under the budget (activation bytes); None without one.

        `least_peak`: the policy of least peak instead, whatever the budget.
        """
        budget = 0 if least_peak else budget_bytes
        for row, base in zip(self.memory_rows, self.base, strict=True):
            self.milp.set_row_upper(row, (budget - float(base)) / MIB)
        self.milp.set_upper(self.over, float("inf") if least_peak else 0.0)
        self.milp.set_cost(self.over, PEAK_WEIGHT if least_peak else 0.0)
        result = self.milp.solve()
        if not result.solved:
            return None
        values = result.values
        chosen = [
            next((p for column, p in zip(xs, places, strict=True) if values[column] > 0.5), None)
            for xs, places in zip(self.x, self.places, strict=True)
        ]
        peak = float(np.max(self.base + self.matrix @ values[self.memory_columns], initial=0.0))
        return ClassAnswer(result=result, chosen=tuple(chosen), peak_bytes=round(peak))

    def placements(self, answer: ClassAnswer) -> list[Placement]:
        """The answer for every member; a window that a member does not have becomes on demand."""
        found = []
        for candidate, place in zip(self.facts.candidates, answer.chosen, strict=True):
            if place is None:
                continue
            for member, op in enumerate(candidate.ops):
                window = -1
                if not place.on_demand and (self.facts.followed[member] or not place.ahead):
                    window = self.facts.windows[place.window].launches[member + place.ahead]
                found.append(Placement(op=op, window=window))
        return found

    def _columns(self, *, windows_open: bool) -> None:
        """x, keep and excess, with the objective: exposed time, and a little of all recompute time."""
        for number, candidate in enumerate(self.facts.candidates):
            cost = candidate.cost_ns / US_NS
            columns = []
            for place in self.places[number]:
                exposed = cost if place.window < 0 or candidate.comm_ns else 0.0
                kind = "demand" if place.on_demand else "ahead" if place.ahead else "window"
                name = f"x[{candidate.name},{kind}{place.at}]"
                columns.append(self.milp.binary(name, exposed + TIE_BREAK * cost))
            self.x.append(columns)
            if not candidate.read:
                self.keep[number] = self.milp.binary(f"keep[{candidate.name}]")
        self.excess = []
        if windows_open:
            self.excess = [self.milp.continuous(f"excess[{i}]", 1.0) for i in range(len(self.facts.windows))]

    def _dependency_rows(self) -> None:
        """once[op]: at most one copy. before[op,source,place]: a copy's source is kept or made no later."""
        for number, candidate in enumerate(self.facts.candidates):
            columns = [*self.x[number], *([self.keep[number]] if number in self.keep else [])]
            if len(columns) > 1:
                self.milp.row(f"once[{candidate.name}]", [(c, 1.0) for c in columns], upper=1.0)
            for source in candidate.sources:
                self._before_rows(number, source)
            if not candidate.read:
                self._with_rows(number)

    def _with_rows(self, number: int) -> None:
        """with[op,place]: a copy that backward does not read is made where one that reads it is made."""
        readers = [i for i, c in enumerate(self.facts.candidates) if number in c.sources]
        for place, column in zip(self.places[number], self.x[number], strict=True):
            there = [c for i in readers for p, c in zip(self.places[i], self.x[i], strict=True) if p.at == place.at]
            name = f"with[{self.facts.candidates[number].name},{place.at}]"
            self.milp.row(name, [(column, 1.0), *((c, -1.0) for c in there)], upper=0.0)

    def _before_rows(self, number: int, source: int) -> None:
        """Per place: a copy up to there excludes a copy of its source after it, and needs a source that backward
        does not read to be kept or made."""
        name = f"{self.facts.candidates[number].name},{self.facts.candidates[source].name}"
        mine = list(zip(self.places[number], self.x[number], strict=True))
        theirs = list(zip(self.places[source], self.x[source], strict=True))
        seen = -1
        for place, _ in mine:
            if place.at == seen:
                continue
            seen = place.at
            early = [(column, 1.0) for p, column in mine if p.at <= place.at]
            if source in self.keep:
                made = [(column, -1.0) for p, column in theirs if p.at <= place.at]
                self.milp.row(f"before[{name},{place.at}]", [*early, (self.keep[source], -1.0), *made], upper=0.0)
            else:
                late = [(column, 1.0) for p, column in theirs if p.at > place.at]
                if late:
                    self.milp.row(f"before[{name},{place.at}]", [*early, *late], upper=1.0)

    def _capacity_rows(self) -> None:
        """capacity[window]: copies placed there, by this layer and by the one after it in backward, less its room."""
        terms: list[dict[int, float]] = [{column: -1.0} for column in self.excess]
        for number, candidate in enumerate(self.facts.candidates):
            for place, column in zip(self.places[number], self.x[number], strict=True):
                if place.window >= 0 and not candidate.comm_ns:
                    terms[place.window][column] = candidate.time_ns / US_NS
        for i, (row, window) in enumerate(zip(terms, self.facts.windows, strict=True)):
            if len(row) > 1:
                self.milp.row(f"capacity[{i}]", row, upper=window.room_ns / US_NS)

    def _memory_terms(self, memory: tuple[int, ...], positions: range) -> tuple[Vector, Vector, NDArray[np.int64]]:
        """Bytes at each position: base + matrix @ columns, without the rows that others dominate."""
        at = np.arange(positions.start, positions.stop, dtype=np.int64)
        base = np.array(memory[positions.start : positions.stop], dtype=np.float64)
        vectors: list[Vector] = []
        columns: list[int] = []
        for number, candidate in enumerate(self.facts.candidates):
            kept = np.zeros(len(at))
            for piece in candidate.pieces:
                kept += piece.bytes * _alive(piece.forward_end + 1, self._last_use(number, piece.last_read), at)
            if candidate.read:
                columns += self.x[number]
                vectors += [self._copy_bytes(number, place, at) - kept for place in self.places[number]]
            else:
                columns += [self.keep[number], *self.x[number]]
                vectors += [kept, *(self._copy_bytes(number, place, at) for place in self.places[number])]
        matrix = np.stack(vectors, axis=1) if vectors else np.zeros((len(at), 0))
        base, matrix = _undominated(base, matrix)
        return base, matrix, np.array(columns, dtype=np.int64)

    def _last_use(self, number: int, last_read: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a kept storage dies: at its last read, or for one that only copies read, at the last such copy."""
        if self.facts.candidates[number].read:
            return last_read
        readers = [i for i, c in enumerate(self.facts.candidates) if number in c.sources]
        uses = [p.positions for i in readers for p in self.places[i] if p.on_demand]
        latest: NDArray[np.int64] = np.maximum.reduce([last_read, *uses])
        return latest

    def _copy_bytes(self, number: int, place: Place, at: NDArray[np.int64]) -> Vector:
        """Bytes of the copies of all members made at `place`: alive from there to the last read."""
        candidate = self.facts.candidates[number]
        start = np.where(place.positions == NEVER, first_read(candidate), place.positions)
        total = np.zeros(len(at))
        for piece in candidate.pieces:
            end = piece.last_read if candidate.read else start  # others serve the copies made at the same place
            total += piece.bytes * _alive(start, np.where(start == NEVER, -1, np.maximum(end, start)), at)
        return total

    def _memory_rows(self) -> list[int]:
        rows = []
        for i, coefficients in enumerate(self.matrix):
            (nonzero,) = np.nonzero(coefficients)
            terms = [(int(self.memory_columns[j]), float(coefficients[j]) / MIB) for j in nonzero]
            rows.append(self.milp.row(f"memory[{i}]", [*terms, (self.over, -1.0)]))
        return rows


def _alive(start: NDArray[np.int64], end: NDArray[np.int64], at: NDArray[np.int64]) -> Vector:
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
