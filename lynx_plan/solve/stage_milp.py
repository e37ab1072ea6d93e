"""OPT's MILP: all layers of a stage at once, what each keeps and recomputes, and where.

Columns: per layer x and keep of `PlaceColumns`; freed[layer], the bytes that a layer's choices free between the end of
its forward and its first copy; excess[window], the time placed in a window beyond its room. Rows: those of
`PlaceColumns`; frees[layer], capacity[window], memory[i]. The objective is the step: that of `none`, plus exposed time,
plus a little of all recompute time (`TIE_BREAK`), in thousandths of the step of `none`. Memory is in
thousandths of its peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.class_facts import Candidate
from lynx_plan.solve.layer_memory import KEEP, BaseMemory, LayerMemory, Rows, Vector, rows_of
from lynx_plan.solve.milp import Milp
from lynx_plan.solve.order import Placement
from lynx_plan.solve.place_columns import PlaceColumns
from lynx_plan.solve.places import Place
from lynx_plan.solve.row_pruning import undominated
from lynx_plan.solve.stage_model import StageModel

TIE_BREAK = 1e-4  # weight of recompute time that is hidden: less is better, all else equal
TIME_SCALE = 1e3
MEMORY_SCALE = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Bytes at a moment: `base`, `terms` by column, less what the layers `gone` freed."""

    base: float
    terms: tuple[tuple[int, float], ...]
    gone: tuple[int, ...]


class StageMilp:
    """Built once per problem; its budget may be set again."""

    def __init__(self, stage: StageModel, base_ns: int) -> None:
        self.stage = stage
        self.layers = [stage.layer(layer.id) for layer in stage.graph.layers]
        self.memories = [LayerMemory(model) for model in self.layers]
        self.time_unit = max(base_ns, 1) / TIME_SCALE
        self.memory_unit = max(stage.none.peak_bytes, 1) / MEMORY_SCALE
        self.milp = Milp()
        self.base = self.milp.continuous("step_of_none", base_ns / self.time_unit, lower=1.0, upper=1.0)
        self.columns = [
            PlaceColumns(self.milp, m.facts, m.places, self._cost, f"{stage.graph.layers[m.layer].name}.")
            for m in self.layers
        ]
        self.freed = [self._freed(number) for number in range(len(self.layers))]
        self.excess = self._capacity_rows()
        self.memory = self._memory()
        self.rows = [self._memory_row(f"memory[{i}]", row) for i, row in enumerate(self.memory)]

    def set_budget(self, budget_bytes: int) -> None:
        """Activation bytes that no moment may exceed."""
        for row, record in zip(self.rows, self.memory, strict=True):
            self.milp.set_row_upper(row, (budget_bytes - record.base) / self.memory_unit)

    def placements(self, values: NDArray[np.float64]) -> list[Placement]:
        """The decisions of a solution."""
        found = []
        for model, columns in zip(self.layers, self.columns, strict=True):
            for candidate, place in zip(model.facts.candidates, columns.chosen(values), strict=True):
                if place is not None:
                    found.append(self.stage.placement(candidate.ops[0], place))
        return found

    def start(self, chosen: Sequence[Sequence[Place | None]]) -> NDArray[np.float64]:
        """The columns' values of a policy per layer: per candidate the place of its copy, if any."""
        values = np.zeros(len(self.milp.columns))
        values[self.base] = 1.0
        used: dict[int, float] = {}
        for number, places in enumerate(chosen):
            self._start_layer(number, places, values, used)
        for window, column in self.excess.items():
            values[column] = max(0.0, used.get(window, 0.0) - self.stage.windows[window].room_ns) / self.time_unit
        return values

    def _start_layer(
        self, number: int, places: Sequence[Place | None], values: NDArray[np.float64], used: dict[int, float]
    ) -> None:
        columns, memory, model = self.columns[number], self.memories[number], self.layers[number]
        for i, place in enumerate(places):
            if place is not None:
                values[columns.x[i][model.places[i].index(place)]] = 1.0
                if place.window >= 0 and not model.facts.candidates[i].comm_ns:
                    used[place.window] = used.get(place.window, 0.0) + model.facts.candidates[i].time_ns
        for i, column in columns.keep.items():
            values[column] = float(places[i] is None and any(places[r] is not None for r in memory.readers[i]))
        values[self.freed[number]] = sum(
            values[self._choice_column(number, n, p)] * size / self.memory_unit
            for (n, p), size in zip(memory.choices, memory.dropped(), strict=True)
        )

    def _cost(self, candidate: Candidate, place: Place) -> float:
        exposed = candidate.cost_ns if place.window < 0 or candidate.comm_ns else 0
        return (exposed + TIE_BREAK * candidate.cost_ns) / self.time_unit

    def _choice_column(self, layer: int, candidate: int, place: int) -> int:
        columns = self.columns[layer]
        return columns.keep[candidate] if place == KEEP else columns.x[candidate][place]

    def _freed(self, number: int) -> int:
        """frees[layer]: its column is what its choices free."""
        memory, name = self.memories[number], self.stage.graph.layers[number].name
        column = self.milp.continuous(f"freed[{name}]", lower=-float("inf"))
        terms = {
            self._choice_column(number, n, p): size / self.memory_unit
            for (n, p), size in zip(memory.choices, memory.dropped().tolist(), strict=True)
            if size
        }
        self.milp.row(f"frees[{name}]", {column: -1.0, **terms}, lower=0.0, upper=0.0)
        return column

    def _capacity_rows(self) -> dict[int, int]:
        """capacity[window]: copies placed there by any layer, less its room; gives the excess columns."""
        terms: dict[int, dict[int, float]] = {}
        for model, columns in zip(self.layers, self.columns, strict=True):
            for candidate, places, xs in zip(model.facts.candidates, model.places, columns.x, strict=True):
                for place, column in zip(places, xs, strict=True):
                    if place.window >= 0 and not candidate.comm_ns:
                        terms.setdefault(place.window, {})[column] = candidate.time_ns / self.time_unit
        excess = {}
        for window in sorted(terms):
            excess[window] = self.milp.continuous(f"excess[{window}]", 1.0)
            room = self.stage.windows[window].room_ns / self.time_unit
            self.milp.row(f"capacity[{window}]", {**terms[window], excess[window]: -1.0}, upper=room)
        return excess

    def _memory(self) -> list[MemoryRow]:
        """The moments that can be the peak: of those with the same layers near and gone, the undominated ones."""
        rows = rows_of(self.layers, range(len(self.stage.none.items)))
        sizes = tuple([storage.bytes for storage in self.stage.graph.storages])
        base = BaseMemory(self.stage.none, sizes).at(rows)
        near, gone = self._presence(rows)
        groups: dict[tuple[bytes, bytes], list[int]] = {}
        for i in range(len(rows)):
            groups.setdefault((near[i].tobytes(), gone[i].tobytes()), []).append(i)
        found: list[MemoryRow] = []
        for members in groups.values():
            chosen = np.array(members)
            found += self._group(rows.pick(chosen), base[chosen], near[members[0]], gone[members[0]])
        return found

    def _presence(self, rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Per row and layer: some of its choices matter in their own right; all that it frees is gone."""
        near = np.zeros((len(rows), len(self.layers)), dtype=bool)
        gone = np.zeros_like(near)
        for number, (memory, model) in enumerate(zip(self.memories, self.layers, strict=True)):
            if not memory.choices:
                continue
            first = min(int(c.made[0]) for c in model.facts.candidates)
            gone[:, number] = (rows.position >= memory.dropped_from) & (rows.position < memory.first_place)
            alive = (rows.position >= first) & (rows.position <= memory.last_use)
            near[:, number] = alive & ~gone[:, number]
        return near, gone

    def _group(self, rows: Rows, base: Vector, near: NDArray[np.bool_], gone: NDArray[np.bool_]) -> list[MemoryRow]:
        columns: list[int] = []
        matrices = []
        for number in np.flatnonzero(near).tolist():
            memory = self.memories[number]
            columns += [self._choice_column(number, n, p) for n, p in memory.choices]
            matrices.append(memory.terms(rows))
        matrix = np.concatenate(matrices, axis=1) if matrices else np.zeros((len(rows), 0))
        base, matrix = undominated(base, matrix)
        away = tuple(np.flatnonzero(gone).tolist())
        return [
            MemoryRow(
                base=float(value),
                terms=tuple((columns[j], float(line[j])) for j in np.flatnonzero(line).tolist()),
                gone=away,
            )
            for value, line in zip(base, matrix, strict=True)
        ]

    def _memory_row(self, name: str, row: MemoryRow) -> int:
        terms = [(column, value / self.memory_unit) for column, value in row.terms]
        return self.milp.row(name, [*terms, *((self.freed[layer], -1.0) for layer in row.gone)])
