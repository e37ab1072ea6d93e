"""Memory over an order: activation bytes alive at each position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lynx_plan.analyze.flow import Flow
from lynx_plan.analyze.replay import state_bytes
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """`bytes`: activation bytes per position, inputs and outputs of the running item both counted."""

    bytes: tuple[int, ...]
    peak_bytes: int
    peak_position: int  # the first position at the peak


def memory_curve(graph: CostGraph, items: Sequence[Item], flow: Flow) -> MemoryCurve:
    """Storage instances and saved random states alive at each position; static memory is apart."""
    change = [0] * (len(items) + 1)
    for life in flow.lifetimes:
        size = graph.storages[life.storage].bytes
        change[life.start] += size
        change[life.end + 1] -= size
    for state in flow.states:
        change[state.start] += state_bytes(graph)
        change[state.end + 1] -= state_bytes(graph)
    alive = tuple(accumulate(change[:-1]))
    peak = max(alive, default=0)
    return MemoryCurve(bytes=alive, peak_bytes=peak, peak_position=alive.index(peak) if alive else 0)
