"""How good an order is, by the exact simulator: what solvers compare their answers with."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import MemoryCurve, memory_curve
from lynx_plan.simulate.streams import Clocks, item_times, run_clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """An order with its reads and memory; `end_ns` is one microbatch."""

    items: tuple[Item, ...]
    flow: Flow
    memory: MemoryCurve
    clocks: Clocks

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
    clocks = run_clocks(graph, items, flow, item_times(graph, items, idle_ns=idle_ns))
    return Scored(items=items, flow=flow, memory=memory_curve(graph, items, flow), clocks=clocks)
