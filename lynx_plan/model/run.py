"""What a run measured, beside what its plan predicted. Records only."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.model.plan import Outcome
from lynx_plan.model.strict import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One plan (or `eager`, the untouched model) measured on the ranks.

    A step's time is the slowest rank's, the median over `steps` steps; `step_spread_ns` is half their
    interquartile range; the peak is the highest rank's. `gradients_equal` is None where not verified.
    """

    __pydantic_config__ = STRICT

    name: str
    plan_digest: str = ""
    predicted: Outcome | None = None
    measured: Outcome
    step_spread_ns: int = 0
    steps: int
    gradients_equal: bool | None = None
    first_difference: str = ""  # the first parameter whose gradient differs
    wrong_copy: str = ""  # the first recomputed op that made other bits than its original, where gradients differ
