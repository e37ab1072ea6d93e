"""HEU's MILP of one layer class: what its layers keep, what they recompute, and where.

Columns: x and keep of `PlaceColumns`; excess[window], the time placed in a window beyond its room; over_budget, bytes
beyond the budget when the least peak is wanted.
Memory is in thousandths of the peak without recomputation, time in thousandths of all recompute time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lynx_plan.model.graph import CostGraph, Phase
from lynx_plan.solve.class_facts import Candidate, ClassFacts, ClassWindow
from lynx_plan.solve.class_memory import KEEP, memory_terms
from lynx_plan.solve.milp import GAP, Milp, MilpResult
from lynx_plan.solve.order import Placement
from lynx_plan.solve.place_columns import PlaceColumns
from lynx_plan.solve.places import Place, Windows, places_of
from lynx_plan.solve.score import Scored

TIE_BREAK = 1e-3  # weight of recompute time that is hidden: less is better, all else equal
PEAK_WEIGHT = 1e3  # of over_budget, when the peak is what is minimised: time only breaks ties
PEAK_GAP = 1e-6
SCALE = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswer:
    """A policy of the class: per candidate the place of its copy (None: kept, or not needed)."""

    result: MilpResult
    chosen: tuple[Place | None, ...]
    peak_bytes: int  # by the MILP's memory rows


class ClassMilp:
    """Built once per class; solved under one or more budgets."""

    def __init__(self, graph: CostGraph, facts: ClassFacts, current: Scored, windows: Windows) -> None:
        """`current`: an order in which this class recomputes nothing."""
        self.facts = facts
        self.memory_unit = max(current.peak_bytes, 1) / SCALE
        self.time_unit = max(sum(c.cost_ns for c in facts.candidates), 1) / SCALE
        self.places = places_of(facts, windows)
        self.milp = Milp()
        self.over = self.milp.continuous("over_budget", upper=0.0)
        self.borrowed = [b if windows is Windows.BORROWED else None for b in facts.borrowed]
        self.columns = PlaceColumns(self.milp, facts, self.places, self._cost)
        self._capacity_rows()
        sizes = tuple([storage.bytes for storage in graph.storages])
        self.memory = memory_terms(facts, self.places, current, _critical_positions(graph, facts, current), sizes)
        self.memory_columns = [
            self.columns.keep[n] if p == KEEP else self.columns.x[n][p] for n, p in self.memory.choices
        ]
        self.memory_rows = self._memory_rows()

    def solve(self, budget_bytes: int, *, least_peak: bool = False) -> ClassAnswer | None:
        """The policy of least exposed time whose memory stays under the budget (activation bytes); None without one.

        `least_peak`: the policy of least peak instead, whatever the budget.
        """
        budget = 0 if least_peak else budget_bytes
        for row, base in zip(self.memory_rows, self.memory.base, strict=True):
            self.milp.set_row_upper(row, (budget - float(base)) / self.memory_unit)
        self.milp.set_upper(self.over, float("inf") if least_peak else 0.0)
        self.milp.set_cost(self.over, PEAK_WEIGHT if least_peak else 0.0)
        result = self.milp.solve(gap=PEAK_GAP if least_peak else GAP)
        if not result.solved:
            return None
        values = result.values
        peak = np.max(self.memory.base + self.memory.matrix @ values[self.memory_columns], initial=0.0)
        return ClassAnswer(result=result, chosen=self.columns.chosen(values), peak_bytes=round(float(peak)))

    def placements(self, answer: ClassAnswer) -> list[Placement]:
        """The answer for every member. What is made on demand for a reader in a window goes to that window: the reader
        pulls it forward. Where the next layer is of another class its window is borrowed, or it becomes on demand.
        """
        facts, found = self.facts, []
        for candidate, place in zip(facts.candidates, answer.chosen, strict=True):
            if place is None:
                continue
            for member, op in enumerate(candidate.ops):
                window = -1
                if place.window >= 0 and place.ahead and not facts.followed[member]:
                    lent = self.borrowed[member]
                    window = lent.launches[0] if lent else -1
                elif place.window >= 0:
                    window = facts.windows[place.window].launches[member + place.ahead]
                found.append(Placement(op=op, window=window))
        return found

    def _cost(self, candidate: Candidate, place: Place) -> float:
        """Exposed time of a layer, and a little of all recompute time."""
        # Members that make ahead copies on demand, as a share.
        lonely = sum(not k and not b for k, b in zip(self.facts.followed, self.borrowed, strict=True))
        alone = lonely / len(self.facts.members)
        cost = candidate.cost_ns / self.time_unit
        exposed = cost if place.window < 0 or candidate.comm_ns else alone * cost if place.ahead else 0.0
        return exposed + TIE_BREAK * cost

    def _capacity_rows(self) -> None:
        """capacity[window]: copies placed there, by this layer and by the one after it in backward, less its room."""
        terms: list[dict[int, float]] = [{} for _ in self.facts.windows]
        ahead: dict[int, float] = {}
        for number, candidate in enumerate(self.facts.candidates):
            for place, column in zip(self.places[number], self.columns.x[number], strict=True):
                if place.window >= 0 and not candidate.comm_ns:
                    terms[place.window][column] = candidate.time_ns / self.time_unit
                    if place.ahead:
                        ahead[column] = candidate.time_ns / self.time_unit
        for i, (row, window) in enumerate(zip(terms, self.facts.windows, strict=True)):
            self._capacity_row(f"{i}", row, window, 1.0)
        for i, lent in enumerate(self.borrowed):
            if lent:
                self._capacity_row(f"borrowed{i}", ahead, lent, 1 / len(self.facts.members))

    def _capacity_row(self, name: str, terms: dict[int, float], window: ClassWindow, weight: float) -> None:
        if terms:
            excess = self.milp.continuous(f"excess[{name}]", weight)
            self.milp.row(f"capacity[{name}]", {**terms, excess: -1.0}, upper=window.room_ns / self.time_unit)

    def _memory_rows(self) -> list[int]:
        """memory[i]: bytes at a position that can be the peak; `solve` sets the budget."""
        rows = []
        for i, coefficients in enumerate(self.memory.matrix):
            (nonzero,) = np.nonzero(coefficients)
            terms = [(self.memory_columns[j], float(coefficients[j]) / self.memory_unit) for j in nonzero]
            rows.append(self.milp.row(f"memory[{i}]", [*terms, (self.over, -1.0)]))
        return rows


def _critical_positions(graph: CostGraph, facts: ClassFacts, current: Scored) -> range:
    """From the last member's forward to the end of the backward of the second one from the end.

    Members before those have the same curve with fewer layers kept.
    """
    last, second = facts.members[-1], facts.members[max(0, len(facts.members) - 2)]
    forward = {op for op in graph.layers[last].ops if graph.ops[op].phase is Phase.FORWARD}
    backward = {op for op in graph.layers[second].ops if graph.ops[op].phase is not Phase.FORWARD}
    originals = [(position, item.op) for position, item in enumerate(current.items) if not item.replica]
    start = next((position for position, op in originals if op in forward), 0)
    stop = max((position for position, op in originals if op in backward), default=start)
    return range(start, stop + 1)
