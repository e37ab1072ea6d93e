"""The cost cache: measured costs of ops, kept from profile to profile of one machine. Records only."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.model.strict import SCHEMA_VERSION, STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """One distinct op's cost in nanoseconds: the slowest rank's median, and half the interquartile range."""

    __pydantic_config__ = STRICT

    key: str  # sha256 of what was measured and among how many ranks and threads
    what: str  # the op, for people
    time_ns: int
    spread_ns: int
    add_ns: int = 0  # an accumulation's later additions
    comm_ns: int = 0
    steal_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCache:
    """A cost cache file. Costs of other conditions mean nothing, so a file holds those of one machine only."""

    __pydantic_config__ = STRICT

    schema_version: str = SCHEMA_VERSION
    kind: str = "lynx.costs"
    conditions: tuple[str, ...]  # processor, cores, clock, torch
    costs: tuple[MeasuredCost, ...] = ()  # by key
