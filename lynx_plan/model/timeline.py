"""Timelines: events on (rank, stream), predicted or measured, one type for both (`timeline.json`). Records only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lynx_plan.model.program import Item
from lynx_plan.model.strict import SCHEMA_VERSION, STRICT


class Stream(StrEnum):
    COMPUTE = "compute"
    COMM = "comm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An item running on a stream of a rank, from `start_ns` to `end_ns` since the step's start.

    A wait's event on the compute stream is the time blocked; a collective has an event on each stream.
    `microbatch` is absolute; `item` is relative to it.
    """

    __pydantic_config__ = STRICT

    rank: int = 0
    stream: Stream
    item: Item
    microbatch: int = 0
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All events of one step, ordered by (rank, stream, start)."""

    __pydantic_config__ = STRICT

    schema_version: str = SCHEMA_VERSION
    kind: str = "lynx.timeline"
    origin: str  # "predicted" or "measured"
    events: tuple[Event, ...]
    end_ns: int
