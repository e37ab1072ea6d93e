"""Every way to keep and recompute in a small stage, judged by the definitions alone: what OPT's MILP is held against.

Takes from the planner only what may be chosen (candidates and their places) and the order of `none`; legality, bytes
and cost are worked out here, in plain intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.places import Place
from lynx_plan.solve.stage_milp import TIE_BREAK
from lynx_plan.solve.stage_model import LayerModel, StageModel

Vector = NDArray[np.float64]
LATER = 1 << 50  # the original itself runs, after all copies placed before it


@dataclass(frozen=True)
class Choice:
    """One candidate of one layer, and the places where it may run again."""

    layer: int
    number: int
    model: LayerModel

    @property
    def candidate(self):  # type: ignore[no-untyped-def]
        return self.model.facts.candidates[self.number]

    @property
    def options(self) -> tuple[Place | None, ...]:
        return (None, *self.model.places[self.number])


class BruteForce:
    """A stage whose every plan can be listed."""

    def __init__(self, stage: StageModel) -> None:
        self.stage = stage
        self.models = [stage.layer(layer.id) for layer in stage.graph.layers]
        self.choices = [Choice(m.layer, n, m) for m in self.models for n in range(len(m.facts.candidates))]
        self.moments = self._moments()
        self.base = np.array([self._base(position, running) for position, running in self.moments])

    @property
    def count(self) -> int:
        return prod(len(choice.options) for choice in self.choices)

    def best(self, budget: int) -> float | None:
        """The least cost (ns beyond `none`) of the legal plans that never exceed the budget; None without one."""
        fitting = (cost for cost, peak in self.plans() if peak <= budget)
        return min(fitting, default=None)

    def plans(self) -> Iterator[tuple[float, float]]:
        """Cost and peak of every legal plan."""
        tables = [[self._bytes(choice, place) for place in choice.options] for choice in self.choices]
        chosen: list[Place | None] = []

        def walk(depth: int, bytes_: Vector) -> Iterator[tuple[float, float]]:
            if depth == len(self.choices):
                kept = self._kept_for_copies(chosen)
                if kept is not None:
                    yield self._cost(chosen), float((bytes_ + kept).max())
                return
            for place, change in zip(self.choices[depth].options, tables[depth], strict=True):
                chosen.append(place)
                yield from walk(depth + 1, bytes_ + change)
                chosen.pop()

        yield from walk(0, self.base)

    def _moments(self) -> list[tuple[int, int]]:
        found = {(position, LATER) for position in range(len(self.stage.none.items))}
        for choice in self.choices:
            found |= {(place.at, choice.candidate.ops[0]) for place in choice.options if place}
        return sorted(found)

    def _base(self, position: int, running: int) -> int:
        """Bytes of `none`: while a copy runs, what the original after it makes is not there yet."""
        storages = self.stage.graph.storages
        return sum(
            storages[life.storage].bytes
            for life in self.stage.none.flow.lifetimes
            if life.start <= position <= life.end and (running == LATER or life.start < position)
        )

    def _bytes(self, choice: Choice, place: Place | None) -> Vector:
        """What a copy there changes: the kept value goes, the copy comes, for as long as each is needed."""
        if place is None:
            return np.zeros(len(self.moments))
        return np.array([self._bytes_at(choice, place, *moment) for moment in self.moments], dtype=np.float64)

    def _bytes_at(self, choice: Choice, place: Place, position: int, running: int) -> int:
        c, op = choice.candidate, choice.candidate.ops[0]
        made = (position, running) >= (place.at, op)
        total = 0
        for piece in c.read_pieces:
            needed = position <= piece.last_read[0]
            total -= piece.bytes * bool(piece.forward_end[0] < position and needed)
            total += piece.bytes * bool(made and needed)
        readers = self._readers(choice)
        held = sum(piece.bytes for piece in c.held_pieces)
        with_copies = position == place.at and running != LATER and made
        if with_copies and readers and running <= max(reader.candidate.ops[0] for reader in readers):
            total += held
        elif made and not with_copies and not self._dies_where_made(choice, place):
            total += held * (position <= self._last_copy(choice))
        if with_copies and running == op:
            total += c.output_bytes - sum(p.bytes for p in c.read_pieces) - (held if readers else 0)
        if c.state_bytes and c.made[0] <= position and (position, running) <= (place.at, op):
            total += c.state_bytes
        return total

    def _readers(self, choice: Choice) -> list[Choice]:
        """Candidates whose copies read what only copies read of this one."""
        return [
            other
            for other in self.choices
            if other.layer == choice.layer and choice.number in other.candidate.held_sources
        ]

    def _dies_where_made(self, choice: Choice, place: Place) -> bool:
        return any(p and p.at == place.at for reader in self._readers(choice) for p in reader.options)

    def _last_copy(self, choice: Choice) -> int:
        return max((p.at for r in self._readers(choice) for p in r.options if p and p.on_demand), default=-1)

    def _kept_for_copies(self, chosen: list[Place | None]) -> Vector | None:
        """Bytes of what is kept for copies alone; None if the choice is not legal."""
        at = {(c.layer, c.number): place for c, place in zip(self.choices, chosen, strict=True)}
        total = np.zeros(len(self.moments))
        for choice, place in zip(self.choices, chosen, strict=True):
            readers = [at[r.layer, r.number] for r in self._readers(choice)]
            copies = [reader for reader in readers if reader]
            if place and not choice.candidate.read_pieces and place.at not in [copy.at for copy in copies]:
                return None  # made for nobody
            if place:
                dies = self._dies_where_made(choice, place)
                if any(not (place.at == copy.at or (place.at < copy.at and not dies)) for copy in copies):
                    return None
                if not self._sources_before(choice, place, at):
                    return None
            elif copies:
                last = self._last_copy(choice)
                for piece in choice.candidate.held_pieces:
                    total += [piece.bytes * (piece.forward_end[0] < q <= last) for q, _ in self.moments]
        return total

    def _sources_before(self, choice: Choice, place: Place, at: dict[tuple[int, int], Place | None]) -> bool:
        """What the copy reads and backward reads too is kept, or made no later."""
        c = choice.candidate
        loose = [at[choice.layer, s] for s in c.sources if s not in c.held_sources]
        return all(source is None or source.at <= place.at for source in loose)

    def _cost(self, chosen: list[Place | None]) -> float:
        exposed = total = 0.0
        used: dict[int, int] = {}
        for choice, place in zip(self.choices, chosen, strict=True):
            c = choice.candidate
            if place is None:
                continue
            total += c.time_ns + c.comm_ns
            if place.window < 0 or c.comm_ns:
                exposed += c.time_ns + c.comm_ns
            else:
                used[place.window] = used.get(place.window, 0) + c.time_ns
        exposed += sum(max(0, time - self.stage.windows[window].room_ns) for window, time in used.items())
        return exposed + TIE_BREAK * total
