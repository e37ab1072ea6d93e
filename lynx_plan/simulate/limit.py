"""The limit of an order: no schedule of the same items on two streams can be shorter (DESIGN: words)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.analyze.flow import Flow
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item
from lynx_plan.simulate.streams import ItemTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One microbatch: all time of the compute stream, all of the communication stream, the longest chain of reads."""

    compute_ns: int
    comm_ns: int
    path_ns: int

    @property
    def end_ns(self) -> int:
        """The largest of the three."""
        return max(self.compute_ns, self.comm_ns, self.path_ns)


def limit(graph: CostGraph, items: Sequence[Item], flow: Flow, times: ItemTimes) -> Limit:
    """The limit of these items, copies included; contention is left out, so it is a lower bound."""
    ends: list[int] = []
    for position in range(len(items)):
        ready = max((ends[source] for source in flow.sources[position] if source >= 0), default=0)
        ends.append(ready + times.compute_ns[position] + times.comm_ns[position])
    return Limit(compute_ns=sum(times.compute_ns), comm_ns=sum(times.comm_ns), path_ns=max(ends, default=0))
