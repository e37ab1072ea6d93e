"""Size-indexed efficiency curves: what share of a peak rate work of a given size reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Efficiency


def share_at(curve: Sequence[Efficiency], size: int) -> float:
    """The share at `size`: linear in log(size) between points, the end points' shares beyond them.

    An empty curve is 1.0: the peak itself. Raises LynxError if a share is not in (0, 1] or sizes do not ascend.
    """
    if not curve:
        return 1.0
    _check(curve)
    if size <= curve[0].size:
        return curve[0].share
    for low, high in pairwise(curve):
        if size <= high.size:
            part = math.log(size / low.size) / math.log(high.size / low.size)
            return low.share + part * (high.share - low.share)
    return curve[-1].share


def _check(curve: Sequence[Efficiency]) -> None:
    hint = "list points by ascending size, each share above 0 and at most 1"
    for point in curve:
        if point.size < 1 or not 0 < point.share <= 1:
            raise LynxError(f"an efficiency of {point.share} at size {point.size} is impossible", hint=hint)
    for low, high in pairwise(curve):
        if high.size <= low.size:
            raise LynxError(f"efficiency sizes do not ascend: {high.size} after {low.size}", hint=hint)
