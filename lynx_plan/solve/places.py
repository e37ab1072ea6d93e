"""Where each candidate of a class may be recomputed: windows before its first use, and on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from lynx_plan.solve.class_facts import NEVER, Candidate, ClassFacts, ClassWindow, Positions


class Windows(StrEnum):
    """Which windows may be used."""

    CLOSED = "closed"
    OPEN = "open"  # a layer's own, and those of the next layer if it is of the same class
    BORROWED = "borrowed"  # those of a next layer of another class too


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place for a copy. `at`: position in the reference member, to order places; `positions`: in each member.

    `window` is the class window whose room it takes (-1: none, so its time is exposed). `ahead`: that window is the
    one of the layer whose backward comes before. On-demand copies run at a reader, which may stand in a window.
    """

    at: int
    positions: Positions
    window: int = -1
    ahead: bool = False
    on_demand: bool = True


NO_PLACES: tuple[Place, ...] = ()


def places_of(facts: ClassFacts, windows: Windows) -> tuple[tuple[Place, ...], ...]:
    """The places of each candidate, ascending by `at`; none for those that cannot be recomputed."""
    is_open = windows is not Windows.CLOSED
    demands = demand_places(facts, lambda reads: _demand_at(facts, reads, windows_open=is_open))
    rooms = _window_places(facts, windows)
    found: list[tuple[Place, ...]] = []
    for candidate, own in zip(facts.candidates, demands, strict=True):
        last = max((place.at for place in own), default=-1)
        usable = [place for place in rooms if place.at < last and not candidate.comm_ns]
        found.append(() if candidate.fixed else tuple(sorted([*usable, *own], key=lambda place: place.at)))
    return tuple(found)


def first_read(candidate: Candidate) -> Positions:
    """Position of the first backward read in each member; `NEVER` without one."""
    reads = [piece.first_read for piece in candidate.read_pieces]
    return np.minimum.reduce(reads) if reads else np.full(len(candidate.ops), NEVER, dtype=np.int64)


def dies_where_made(facts: ClassFacts, places: tuple[tuple[Place, ...], ...], number: int, place: Place) -> bool:
    """What only copies read of a copy made at `place` serves copies made there, if there may be any, and no later."""
    readers = (i for i, candidate in enumerate(facts.candidates) if number in candidate.held_sources)
    return any(other.at == place.at for i in readers for other in places[i])


def demand_places(facts: ClassFacts, demand_at: Callable[[Positions], Place]) -> list[list[Place]]:
    """On-demand places per candidate: at the own first read, and before it wherever a dependent may be made on demand.

    `demand_at`: the place of copies for the reader at these positions.
    """
    ref = facts.reference
    demands: list[dict[int, Place]] = [{} for _ in facts.candidates]
    for number in range(len(facts.candidates) - 1, -1, -1):
        candidate = facts.candidates[number]
        mine = demands[number]
        deadline = NEVER
        if candidate.read:
            reads = first_read(candidate)
            deadline = int(reads[ref])
            mine[deadline] = demand_at(reads)
        for at in [at for at in mine if at > deadline]:
            del mine[at]
        for source in candidate.sources:
            for at, place in mine.items():
                demands[source].setdefault(at, place)
    return [list(mine.values()) for mine in demands]


def _demand_at(facts: ClassFacts, reads: Positions, *, windows_open: bool) -> Place:
    """The on-demand place at these reads; in the room of a window if a filler of that window is the reader."""
    ref = facts.reference
    at = int(reads[ref])
    if windows_open:
        for ahead in (False, True) if facts.followed[ref] else (False,):
            for number, window in enumerate(facts.windows):
                if window.room_ns > 0 and window.launch[ref + ahead] < at < window.wait[ref + ahead]:
                    return Place(at=at, positions=reads, window=number, ahead=ahead)
    return Place(at=at, positions=reads)


def _window_places(facts: ClassFacts, windows: Windows) -> list[Place]:
    """The windows of the layer, and those of the layer whose backward comes before; full ones are no use."""
    ref = facts.reference
    found = []
    for number, window in enumerate(facts.windows):
        if windows is Windows.CLOSED or window.room_ns <= 0:
            continue
        found.append(Place(at=int(window.wait[ref]), positions=window.wait, window=number, on_demand=False))
        if facts.followed[ref]:
            positions = _ahead(facts, window, borrow=windows is Windows.BORROWED)
            found.append(Place(at=int(positions[ref]), positions=positions, window=number, ahead=True, on_demand=False))
    return found


def _ahead(facts: ClassFacts, window: ClassWindow, *, borrow: bool) -> Positions:
    """Where the next layer's window ends, for each member: its own class's, a borrowed one, or none (`NEVER`)."""
    ends = []
    for member, (known, borrowed) in enumerate(zip(facts.followed, facts.borrowed, strict=True)):
        lent = int(borrowed.wait[0]) if borrow and borrowed else NEVER
        ends.append(int(window.wait[member + 1]) if known else lent)
    return np.array(ends, dtype=np.int64)
