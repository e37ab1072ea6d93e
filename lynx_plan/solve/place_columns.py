"""The columns and dependency rows of some layers' recomputation in a MILP: which ops, and at which place.

Columns: x[op,place] = 1 if the op is recomputed there (without one, what backward reads of it is kept); keep[op] = 1
if what only copies read of it is kept for them. Rows: once, before, held, with; each is explained where it is made.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.class_facts import Candidate, ClassFacts
from lynx_plan.solve.milp import Milp
from lynx_plan.solve.places import Place, dies_where_made

Cost = Callable[[Candidate, Place], float]


class PlaceColumns:
    """The columns of `facts` with these places in `milp`; `label` begins their names."""

    def __init__(
        self, milp: Milp, facts: ClassFacts, places: tuple[tuple[Place, ...], ...], cost: Cost, label: str = ""
    ) -> None:
        self.milp = milp
        self.facts = facts
        self.places = places
        self.label = label
        self.x: list[list[int]] = []
        self.keep: dict[int, int] = {}
        self._columns(cost)
        self._dependency_rows()

    def chosen(self, values: NDArray[np.float64]) -> tuple[Place | None, ...]:
        """Per candidate the place of its copy by the values of all columns; None: kept, or not needed."""
        return tuple(
            next((p for column, p in zip(xs, places, strict=True) if values[column] > 0.5), None)
            for xs, places in zip(self.x, self.places, strict=True)
        )

    def _name(self, number: int) -> str:
        return self.label + self.facts.candidates[number].name

    def _columns(self, cost: Cost) -> None:
        for number, candidate in enumerate(self.facts.candidates):
            columns = []
            for place in self.places[number]:
                kind = "demand" if place.on_demand else "ahead" if place.ahead else "window"
                name = f"x[{self._name(number)},{kind}{place.at}]"
                columns.append(self.milp.binary(name, cost(candidate, place)))
            self.x.append(columns)
            if candidate.held:
                self.keep[number] = self.milp.binary(f"keep[{self._name(number)}]")

    def _dependency_rows(self) -> None:
        """once[op]: at most one copy. before[op,source,place]: a copy's source is kept or made no later."""
        for number, candidate in enumerate(self.facts.candidates):
            columns = [*self.x[number], *([self.keep[number]] if number in self.keep else [])]
            if len(columns) > 1:
                self.milp.row(f"once[{self._name(number)}]", [(c, 1.0) for c in columns], upper=1.0)
            for source in candidate.sources:
                self._before_rows(number, source)
            if not candidate.read:
                self._with_rows(number)

    def _with_rows(self, number: int) -> None:
        """with[op,place]: a copy that backward does not read is made where one of those that read it is made."""
        readers = [i for i, c in enumerate(self.facts.candidates) if number in c.held_sources]
        for place, column in zip(self.places[number], self.x[number], strict=True):
            there = [c for i in readers for p, c in zip(self.places[i], self.x[i], strict=True) if p.at == place.at]
            name = f"with[{self._name(number)},{place.at}]"
            self.milp.row(name, [(column, 1.0), *((c, -1.0) for c in there)], upper=0.0)

    def _before_rows(self, number: int, source: int) -> None:
        """before[op,source,place]: a copy up to there excludes a copy of its source later on."""
        if source in self.facts.candidates[number].held_sources:
            self._held_rows(number, source)
            return
        mine = list(zip(self.places[number], self.x[number], strict=True))
        theirs = list(zip(self.places[source], self.x[source], strict=True))
        for at in sorted({place.at for place in self.places[number]}):
            early = [(column, 1.0) for place, column in mine if place.at <= at]
            late = [(column, 1.0) for place, column in theirs if place.at > at]
            if late:
                self.milp.row(self._dependency_name("before", number, source, at), [*early, *late], upper=1.0)

    def _held_rows(self, number: int, source: int) -> None:
        """held[op,source,place]: what a copy reads and backward does not is kept, or made there, or earlier to last."""
        for at in sorted({place.at for place in self.places[number]}):
            mine = [(c, 1.0) for p, c in zip(self.places[number], self.x[number], strict=True) if p.at == at]
            made = [
                (column, -1.0)
                for place, column in zip(self.places[source], self.x[source], strict=True)
                if place.at == at or (place.at < at and not dies_where_made(self.facts, self.places, source, place))
            ]
            name = self._dependency_name("held", number, source, at)
            self.milp.row(name, [*mine, (self.keep[source], -1.0), *made], upper=0.0)

    def _dependency_name(self, rule: str, number: int, source: int, at: int) -> str:
        return f"{rule}[{self._name(number)},{self._name(source)},{at}]"
