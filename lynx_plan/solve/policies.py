"""A layer's Pareto frontier of policies: bytes freed, bytes at the peak, exposed time. Enumerated, not solved.

Every subset of a layer's candidates (merged into at most `UNITS` groups) is recomputed in several ways: on demand, or
in windows, the latest first, of the layer itself or of the one whose backward comes before too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynx_plan.solve.layer_memory import KEEP, BaseMemory, LayerMemory, Rows, Vector, rows_of
from lynx_plan.solve.places import Place, first_read
from lynx_plan.solve.stage_model import LayerModel, StageModel

UNITS = 11  # groups of candidates that are dropped or kept together; 2^11 subsets
MOST = 48  # policies kept per layer
HIDDEN_WEIGHT = 1e-3  # of recompute time that is hidden: less is better, all else equal

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a layer keeps and recomputes: per candidate the place of its copy (None: kept, or not needed).

    `freed_bytes` from the end of its forward to its first copy; `peak_bytes` while the layer (or the one above it, in
    its windows) runs, if no other layer frees anything; `cost_ns` exposed, with a little of what is hidden.
    """

    places: tuple[Place | None, ...]
    cost_ns: float
    freed_bytes: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class _Plans:
    """Many policies of one layer: what is recomputed, and at which position, [policies, candidates]."""

    recompute: Flags
    at: Ints
    cost: Vector
    valid: Flags


def frontier(
    stage: StageModel, model: LayerModel, above: LayerModel | None, *, thorough: bool = False
) -> tuple[Policy, ...]:
    """The undominated policies, keeping everything included; `above`: the next layer, if it is of the same class.

    Unless `thorough`, of policies that free and cost alike the peak is not looked at: with many layers, what each
    frees counts for more.
    """
    memory = LayerMemory(model)
    recompute = _subsets(model)
    choices, costs = [], []
    for windows, strict in _ways(stage, model):
        plans = _Placer(stage, model, recompute, windows, strict=strict, alike=above is not None).plans()
        x, cost = _one_hot(model, memory, plans), plans.cost[plans.valid]
        best = np.arange(len(x)) if thorough else _pareto(cost, -(x @ memory.dropped()))
        choices.append(x[best])
        costs.append(cost[best])
    x, cost = np.concatenate(choices), np.concatenate(costs)
    freed = x @ memory.dropped()
    rows = rows_of([model], _positions(stage, model))
    peak = _peaks(stage, model, above, memory, rows, x)
    kept = _thin(_pareto_3(cost, -freed, peak), MOST)
    return tuple(
        Policy(places=_places(model, memory, x[i]), cost_ns=float(cost[i]), freed_bytes=freed[i], peak_bytes=peak[i])
        for i in kept
    )


def _ways(stage: StageModel, model: LayerModel) -> list[tuple[tuple[int, ...], bool]]:
    """Which windows may be used, and whether copies must fit wholly; only what can make a difference."""
    own = stage.windows_of_layer.get(model.layer, ())
    ahead = tuple(n for n in stage.windows_of_layer.get(model.layer + 1, ()))
    sets = dict.fromkeys([(), own, (*own, *ahead[-1:]), (*own, *ahead)])
    return [(windows, strict) for windows in sets for strict in ((True, False) if windows else (True,))]


def _positions(stage: StageModel, model: LayerModel) -> range:
    """From the layer's first op to its last, the layers between included."""
    spots = [stage.reader.position[op] for op in stage.graph.layers[model.layer].ops]
    return range(min(spots), max(spots) + 1)


class _Placer:
    """Places every subset of a layer's candidates with one way of using windows."""

    def __init__(
        self,
        stage: StageModel,
        model: LayerModel,
        recompute: Flags,
        windows: tuple[int, ...],
        *,
        strict: bool,
        alike: bool,
    ) -> None:
        """`alike`: the next layer is of the same class, so its windows serve it as this layer's own serve this one."""
        self.stage, self.model, self.strict, self.alike = stage, model, strict, alike
        self.windows = sorted(windows, key=lambda n: -stage.windows[n].wait)
        self.candidates = model.facts.candidates
        self.recompute = recompute
        self.blocked = self._blocked()
        self.read = [int(first_read(c)[0]) for c in self.candidates]
        self.ats = [{place.at: place for place in places} for places in model.places]

    def plans(self) -> _Plans:
        """The latest windows first; what finds no room is made on demand, or where its first reader is made."""
        count = len(self.candidates)
        need = np.empty(self.recompute.shape, dtype=np.int64)
        need[:] = self.read
        for number in range(count - 1, -1, -1):
            self._lower(need, number, need[:, number], self.recompute[:, number])
        at = np.full(need.shape, -1, dtype=np.int64)
        self.used: dict[int, Vector] = {}
        for window in self.windows:
            self._fill(window, need, at)
        for number in range(count - 1, -1, -1):
            at[:, number] = np.where(at[:, number] < 0, need[:, number], at[:, number])
            self._lower(need, number, at[:, number], self.recompute[:, number])
        return self._priced(at)

    def _blocked(self) -> Flags:
        """Copies that read, directly or not, a copied collective: those run on demand, so these do too."""
        found = np.zeros_like(self.recompute)
        for number, candidate in enumerate(self.candidates):
            for source in candidate.sources:
                late = found[:, source] | bool(self.candidates[source].comm_ns)
                found[:, number] |= self.recompute[:, source] & late
        return found

    def _room(self, window: int) -> int:
        """What tells the room of a window apart: layers of one class share theirs with the next as they run."""
        if not self.alike or self.stage.windows[window].layer < 0:
            return window
        return -1 - self.stage.index.op_slot[self.stage.windows[window].launch]

    def _lower(self, need: Ints, number: int, at: Ints, chosen: Flags) -> None:
        """Sources of the chosen copies are needed no later than those."""
        for source in self.candidates[number].sources:
            need[:, source] = np.where(chosen, np.minimum(need[:, source], at), need[:, source])

    def _fill(self, window: int, need: Ints, at: Ints) -> None:
        record = self.stage.windows[window]
        used = self.used.setdefault(self._room(window), np.zeros(len(need)))
        for number in range(len(self.candidates) - 1, -1, -1):
            if record.wait not in self.ats[number]:
                continue
            time = self.candidates[number].time_ns
            room = used + time <= record.room_ns if self.strict else used < record.room_ns
            free = self.recompute[:, number] & ~self.blocked[:, number] & (at[:, number] < 0)
            free &= need[:, number] >= record.wait
            chosen = free & room
            at[chosen, number] = record.wait
            used += chosen * time
            self._lower(need, number, at[:, number], chosen)

    def _priced(self, at: Ints) -> _Plans:
        """Exposed time: on demand outside windows, and beyond the room of each window."""
        valid = np.ones(len(at), dtype=bool)
        exposed, total = np.zeros(len(at)), np.zeros(len(at))
        used: dict[int, Vector] = {}
        rooms: dict[int, int] = {}
        for number, candidate in enumerate(self.candidates):
            known = np.zeros(len(at), dtype=bool)
            chosen = self.recompute[:, number]
            total += chosen * float(candidate.cost_ns)
            for spot, place in self.ats[number].items():
                here = chosen & (at[:, number] == spot)
                known |= here
                if place.window < 0 or candidate.comm_ns:
                    exposed += here * float(candidate.cost_ns)
                else:
                    key = self._room(place.window)
                    used[key] = used.get(key, 0.0) + here * float(candidate.time_ns)
                    rooms[key] = self.stage.windows[place.window].room_ns
            valid &= known | ~chosen
        for window, time in used.items():
            exposed += np.maximum(0.0, time - rooms[window])
        return _Plans(recompute=self.recompute, at=at, cost=exposed + HIDDEN_WEIGHT * total, valid=valid)


def _subsets(model: LayerModel) -> Flags:
    """What is recomputed, a row per distinct subset of units; a copy that nothing reads is left out."""
    candidates = model.facts.candidates
    free = [n for n, places in enumerate(model.places) if places]
    units = np.array_split(np.array(free, dtype=np.int64), min(UNITS, len(free))) if free else []
    numbers = np.arange(1 << len(units), dtype=np.int64)
    flags = np.zeros((len(numbers), len(candidates)), dtype=bool)
    for bit, unit in enumerate(units):
        flags[:, unit] = ((numbers >> bit) & 1).astype(bool)[:, None]
    for number in range(len(candidates) - 1, -1, -1):
        if not candidates[number].read:
            readers = [i for i, c in enumerate(candidates) if number in c.held_sources]
            flags[:, number] &= flags[:, readers].any(axis=1)
    return np.unique(flags, axis=0)


def _one_hot(model: LayerModel, memory: LayerMemory, plans: _Plans) -> Vector:
    """The valid policies as choices, [policies, choices]."""
    at, recompute = plans.at[plans.valid], plans.recompute[plans.valid]
    x = np.zeros((len(at), len(memory.choices)))
    for column, (number, place) in enumerate(memory.choices):
        if place == KEEP:
            readers = memory.readers[number]
            x[:, column] = recompute[:, readers].any(axis=1) & ~recompute[:, number]
        else:
            x[:, column] = recompute[:, number] & (at[:, number] == model.places[number][place].at)
    return x


def _peaks(
    stage: StageModel, model: LayerModel, above: LayerModel | None, memory: LayerMemory, rows: Rows, x: Vector
) -> Vector:
    """Bytes at each policy's peak while this layer, or the one above in its windows, runs."""
    sizes = tuple([storage.bytes for storage in stage.graph.storages])
    rows = rows.pick(_near(stage, model, memory, rows))
    base, matrix = BaseMemory(stage.none, sizes).at(rows), memory.terms(rows)
    if above is not None:
        other = LayerMemory(above)
        if len(other.choices) == len(memory.choices):
            matrix = matrix + other.terms(rows)
    found: Vector = (base + x @ matrix.T).max(axis=1)
    return found


def _near(stage: StageModel, model: LayerModel, memory: LayerMemory, rows: Rows) -> Flags:
    """Rows of the layer's own forward and backward, and from its first place on."""
    position = stage.reader.position
    ops = stage.graph.layers[model.layer].ops
    forward = [position[op] for op in ops if position[op] < stage.forward_end]
    backward = [position[op] for op in ops if position[op] >= stage.forward_end]
    start = min([memory.first_place, *backward])
    found: Flags = rows.position >= start
    if forward:
        found |= (rows.position >= min(forward)) & (rows.position <= max(forward))
    return found


def _places(model: LayerModel, memory: LayerMemory, x: Vector) -> tuple[Place | None, ...]:
    found: list[Place | None] = [None] * len(model.places)
    for flag, (number, place) in zip(x, memory.choices, strict=True):
        if flag and place != KEEP:
            found[number] = model.places[number][place]
    return tuple(found)


def _pareto(first: Vector, second: Vector) -> Ints:
    """Indices of the points that no other one beats in both, by rising `first`; of equal ones, the first."""
    order = np.lexsort((second, first))
    best = np.minimum.accumulate(second[order])
    new = np.ones(len(order), dtype=bool)
    new[1:] = second[order][1:] < best[:-1]
    found: Ints = order[new]
    return found


def _pareto_3(first: Vector, second: Vector, third: Vector) -> list[int]:
    """The same with three coordinates."""
    order = np.lexsort((third, second, first))
    kept: list[int] = []
    for i in order.tolist():
        if not kept or not np.any((second[kept] <= second[i]) & (third[kept] <= third[i])):
            kept.append(i)
    return kept


def _thin(indices: list[int], most: int) -> list[int]:
    """At most so many of them, evenly, the ends included."""
    if len(indices) <= most:
        return indices
    chosen = np.unique(np.linspace(0, len(indices) - 1, most).round().astype(int))
    return [indices[i] for i in chosen]
