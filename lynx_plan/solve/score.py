"""How good an order is, by the exact simulator: what solvers compare their answers with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import MemoryCurve, memory_curve
from lynx_plan.simulate.streams import Clocks, item_times, run_clocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """An order with its reads and memory; times are worked out when they are asked for. `end_ns` is one microbatch."""

    graph: CostGraph
    items: tuple[Item, ...]
    flow: Flow
    memory: MemoryCurve
    idle_ns: int

    @cached_property
    def clocks(self) -> Clocks:
        """When each item runs on both streams."""
        return run_clocks(self.graph, self.items, self.flow, item_times(self.graph, self.items, idle_ns=self.idle_ns))

    @property
    def end_ns(self) -> int:
        return self.clocks.end_ns

    @property
    def peak_bytes(self) -> int:
        """Activation bytes at the peak."""
        return self.memory.peak_bytes

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is better: time, then memory."""
        return self.end_ns, self.peak_bytes


def score(graph: CostGraph, items: tuple[Item, ...], *, idle_ns: int = 0) -> Scored:
    """Simulate an order exactly; `idle_ns`: given windows before the backward pass."""
    flow = resolve(graph, items)
    return Scored(graph=graph, items=items, flow=flow, memory=memory_curve(graph, items, flow), idle_ns=idle_ns)
