"""Pipeline schedules: which action each rank runs after which. Records only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from lynx_plan.model.strict import STRICT

_ACTION = re.compile(r"^(?P<stage>\d+)(?P<act>[FBIW])(?P<microbatch>\d+)$")


class Act(StrEnum):
    """What a stage does with a microbatch."""

    FORWARD = "F"
    BACKWARD = "B"  # whole: gradients of inputs and of weights
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One stage's act on one microbatch; its text is `2F0`."""

    stage: int
    act: Act
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.act}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> Action:
        """Inverse of `str`; raises ValueError."""
        match = _ACTION.match(text)
        if not match:
            raise ValueError(f"'{text}' is not an action such as 2F0")
        return Action(int(match["stage"]), Act(match["act"]), int(match["microbatch"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`orders`: per rank its actions, in order. `rank_of_stage`: per stage the rank that holds it."""

    __pydantic_config__ = STRICT

    name: str
    micro_batches: int
    rank_of_stage: tuple[int, ...]
    orders: tuple[tuple[Action, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.orders)

    @property
    def stages(self) -> int:
        return len(self.rank_of_stage)
