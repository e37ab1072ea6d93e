"""What a step costs: the figures of an Outcome from an order and its durations, predicted or measured.

An interleaved step is simulated with `SHOWN` microbatches; every further one adds what the last steady run took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.analyze.steps import StepOrder, Unrolled
from lynx_plan.model.graph import CostGraph, Role
from lynx_plan.model.plan import Outcome
from lynx_plan.model.program import Item
from lynx_plan.simulate.memory import memory_curve
from lynx_plan.simulate.streams import ItemTimes, item_times, run_clocks

SHOWN = 4


def predict(graph: CostGraph, items: Sequence[Item], *, micro_batches: int = 1, idle_ns: int = 0) -> Outcome:
    """The outcome of a plain step of this order by the graph's own costs; `idle_ns` as in `ItemTimes`."""
    return outcome(graph, items, item_times(graph, items, idle_ns=idle_ns), micro_batches=micro_batches)


def predict_step(graph: CostGraph, order: StepOrder, *, micro_batches: int = 1, idle_ns: int = 0) -> Outcome:
    """The outcome of a step by the graph's own costs; `idle_ns` goes with plain orders only."""
    if not order.interleaved:
        return predict(graph, order.steady, micro_batches=micro_batches, idle_ns=idle_ns)
    unrolled = shown(order, micro_batches)
    return interleaved_outcome(graph, unrolled, item_times(graph, unrolled.items), micro_batches=micro_batches)


def shown(order: StepOrder, micro_batches: int) -> Unrolled:
    """The runs that an interleaved step is simulated with."""
    return order.unrolled(min(micro_batches, SHOWN))


def outcome(
    graph: CostGraph,
    items: Sequence[Item],
    times: ItemTimes,
    *,
    micro_batches: int = 1,
    flow: Flow | None = None,
    peak_activation_bytes: int | None = None,
) -> Outcome:
    """The outcome of a plain step of `micro_batches` programs and the optimizer.

    `flow` and `peak_activation_bytes` (measured, for instance) are derived from the order where not given.
    Hidden recompute may come out negative where recomputed collectives slow other compute by more than they hide.
    """
    flow = flow or resolve(graph, items)
    peak = peak_activation_bytes
    if peak is None:
        peak = memory_curve(graph, items, flow).peak_bytes
    actual = run_clocks(graph, items, flow, times)
    copies = _copies(items)
    free_ns = run_clocks(graph, items, flow, without(times, copies)).end_ns if copies else actual.end_ns
    whole = _Whole(end_ns=micro_batches * actual.end_ns, blocked_ns=micro_batches * actual.blocked_ns)
    recompute = micro_batches * sum(times.compute_ns[p] + times.comm_ns[p] for p in copies)
    return _outcome(graph, whole, micro_batches * free_ns, recompute, peak)


def interleaved_outcome(
    graph: CostGraph, unrolled: Unrolled, times: ItemTimes, *, micro_batches: int, flow: Flow | None = None
) -> Outcome:
    """The outcome of an interleaved step of which `unrolled` are the runs that `shown` gives."""
    items = unrolled.items
    flow = flow or resolve(graph, items, unrolled.starts)
    peak = memory_curve(graph, items, flow).peak_bytes
    whole = _whole(graph, unrolled, flow, times, micro_batches)
    copies = _copies(items)
    free_ns = whole.end_ns
    if copies:
        free_ns = _whole(graph, unrolled, flow, without(times, copies), micro_batches).end_ns
    last = unrolled.span(len(unrolled.starts) - 1)
    recompute = micro_batches * sum(times.compute_ns[p] + times.comm_ns[p] for p in copies if p in last)
    return _outcome(graph, whole, free_ns, recompute, peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """All microbatches of a step, without the optimizer."""

    end_ns: int
    blocked_ns: int


def _whole(graph: CostGraph, unrolled: Unrolled, flow: Flow, times: ItemTimes, micro_batches: int) -> _Whole:
    """The simulated runs, and the last steady one again for each microbatch beyond them."""
    clocks = run_clocks(graph, unrolled.items, flow, times)
    further = max(0, micro_batches - SHOWN)
    if not further:
        return _Whole(end_ns=clocks.end_ns, blocked_ns=clocks.blocked_ns)
    steady = unrolled.span(len(unrolled.starts) - 2)
    period_ns = clocks.compute[steady.stop][0] - clocks.compute[steady.start][0]
    waits = [p for p in steady if graph.ops[unrolled.items[p].op].role is Role.WAIT]
    blocked_ns = sum(clocks.compute[p][1] - clocks.compute[p][0] for p in waits)
    return _Whole(
        end_ns=clocks.end_ns + further * period_ns,
        blocked_ns=clocks.blocked_ns + further * blocked_ns,
    )


def _copies(items: Sequence[Item]) -> list[int]:
    return [position for position, item in enumerate(items) if item.replica]


def _outcome(graph: CostGraph, whole: _Whole, free_ns: int, recompute_ns: int, peak: int) -> Outcome:
    """The record; `free_ns`: the end if recomputation took no time."""
    exposed = whole.end_ns - free_ns
    return Outcome(
        step_ns=whole.end_ns + graph.optimizer_ns,
        peak_bytes=graph.static.total_bytes + peak,
        peak_activation_bytes=peak,
        recompute_hidden_ns=recompute_ns - exposed,
        recompute_exposed_ns=exposed,
        comm_exposed_ns=whole.blocked_ns,
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
