"""What a step costs: the figures of an Outcome from an order and its durations, predicted or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Outcome
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.simulate.streams import ItemTimes, item_times, run_clocks


def predict(graph: CostGraph, items: Sequence[Item], *, micro_batches: int = 1, idle_ns: int = 0) -> Outcome:
    """The outcome of an order by the graph's own costs; `idle_ns` as in `ItemTimes`."""
    return outcome(graph, items, item_times(graph, items, idle_ns=idle_ns), micro_batches=micro_batches)


def outcome(
    graph: CostGraph,
    items: Sequence[Item],
    times: ItemTimes,
    *,
    micro_batches: int = 1,
    flow: Flow | None = None,
    peak_activation_bytes: int | None = None,
) -> Outcome:
    """The outcome of a step of `micro_batches` programs and the optimizer.

    `flow` and `peak_activation_bytes` (measured, for instance) are derived from the order where not given.
    Hidden recompute may come out negative where recomputed collectives slow other compute by more than they hide.
    """
    flow = flow or resolve(graph, items)
    if peak_activation_bytes is None:
        peak_activation_bytes = memory_curve(graph, items, flow).peak_bytes
    actual = run_clocks(graph, items, flow, times)
    copies = [position for position, item in enumerate(items) if item.replica]
    exposed = 0
    if copies:
        exposed = actual.end_ns - run_clocks(graph, items, flow, without(times, copies)).end_ns
    recompute = sum(times.compute_ns[position] + times.comm_ns[position] for position in copies)
    return Outcome(
        step_ns=micro_batches * actual.end_ns + graph.optimizer_ns,
        peak_bytes=graph.static.total_bytes + peak_activation_bytes,
        peak_activation_bytes=peak_activation_bytes,
        recompute_hidden_ns=micro_batches * (recompute - exposed),
        recompute_exposed_ns=micro_batches * exposed,
        comm_exposed_ns=micro_batches * actual.blocked_ns,
    )


def without(times: ItemTimes, positions: Sequence[int]) -> ItemTimes:
    """The same durations with those at `positions` zero."""
    zeroed: dict[str, Any] = {}
    for name in ("compute_ns", "comm_ns", "steal_ns", "span_ns"):
        changed = list(getattr(times, name))
        for position in positions:
            changed[position] = 0
        zeroed[name] = tuple(changed)
    return replace(times, **zeroed)
