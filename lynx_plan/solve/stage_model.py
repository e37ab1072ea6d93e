"""A stage as OPT and HEU see it: per layer its candidates and their places, and the windows that all layers share.

Positions are those of `none`'s order. A copy may run on demand, in a backward window of its own layer or of one of the
`LOOK_AHEAD` layers whose backward comes before, or in the given windows before the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import Phase
from lynx_plan.solve.candidates import Candidates
from lynx_plan.solve.class_facts import ClassFacts, FactReader
from lynx_plan.solve.order import Placement
from lynx_plan.solve.places import NO_PLACES, Place, demand_places
from lynx_plan.solve.score import Scored

LOOK_AHEAD = 1  # layers; copies made further ahead cost memory for longer, and the windows there serve their own layers


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindow:
    """Room for `room_ns` of copies before the original at `wait`: in the window of the collective `launch` (an op id;
    -1: the given windows before the backward pass) of `layer`, which was launched at position `start`."""

    launch: int
    layer: int
    start: int
    wait: int
    room_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerModel:
    """One layer: the facts of it alone, and the places of each candidate, ascending by position."""

    layer: int
    facts: ClassFacts
    places: tuple[tuple[Place, ...], ...]


class StageModel:
    """Facts of one planning problem, read from `none`'s order."""

    def __init__(self, candidates: Candidates, none: Scored, *, idle_ns: int = 0, windows_open: bool = True) -> None:
        self.candidates = candidates
        self.index: GraphIndex = candidates.index
        self.graph = self.index.graph
        self.none = none
        self.idle_ns = idle_ns
        self.windows_open = windows_open
        self.reader = FactReader(candidates, none)
        ops = self.graph.ops
        self.forward_end = next(
            (i for i, item in enumerate(none.items) if ops[item.op].phase is not Phase.FORWARD), len(none.items)
        )

    @cached_property
    def windows(self) -> tuple[StageWindow, ...]:
        """Windows with room, in order of where they end."""
        found = []
        if self.idle_ns:
            end = self.forward_end
            found.append(StageWindow(launch=-1, layer=-1, start=end, wait=end, room_ns=self.idle_ns))
        if self.windows_open:
            for layer in range(len(self.graph.layers)):
                found += [
                    StageWindow(
                        launch=window.launches[0],
                        layer=layer,
                        start=int(window.launch[0]),
                        wait=int(window.wait[0]),
                        room_ns=window.room_ns,
                    )
                    for window in self.reader.windows((layer,))
                ]
        return tuple(sorted((w for w in found if w.room_ns > 0), key=lambda w: (w.wait, w.start)))

    @cached_property
    def windows_of_layer(self) -> dict[int, tuple[int, ...]]:
        """Layer -> numbers of its windows; -1 -> the given ones."""
        found: dict[int, list[int]] = {}
        for number, window in enumerate(self.windows):
            found.setdefault(window.layer, []).append(number)
        return {layer: tuple(numbers) for layer, numbers in found.items()}

    def layer(self, layer: int) -> LayerModel:
        """The candidates of a layer and their places."""
        facts = self.reader.read((layer,))
        near = range(layer, layer + LOOK_AHEAD + 1)
        usable = [n for home in (-1, *near) for n in self.windows_of_layer.get(home, ())]
        demands = demand_places(facts, lambda reads: self._demand_at(int(reads[0])))
        rooms = [self._window_place(number, layer) for number in usable]
        places = []
        for candidate, own in zip(facts.candidates, demands, strict=True):
            last = max((place.at for place in own), default=-1)
            fits = [place for place in rooms if place.at < last and not candidate.comm_ns]
            places.append(NO_PLACES if candidate.fixed else tuple(sorted([*fits, *own], key=lambda place: place.at)))
        return LayerModel(layer=layer, facts=facts, places=tuple(places))

    def _window_place(self, number: int, layer: int) -> Place:
        window = self.windows[number]
        return Place(
            at=window.wait,
            positions=np.array([window.wait], dtype=np.int64),
            window=number,
            ahead=window.layer != layer,
            on_demand=False,
        )

    def _demand_at(self, at: int) -> Place:
        """The on-demand place at a reader; in the room of a window if that reader fills it."""
        inside = next((n for n, w in enumerate(self.windows) if w.start < at < w.wait), -1)
        return Place(at=at, positions=np.array([at], dtype=np.int64), window=inside)

    def placement(self, op: int, place: Place) -> Placement:
        """The decision to copy `op` at `place`. What is made on demand for a reader in a window is placed there: the
        reader pulls it forward."""
        if place.window < 0:
            return Placement(op=op)
        launch = self.windows[place.window].launch
        return Placement(op=op, early=True) if launch < 0 else Placement(op=op, window=launch)
