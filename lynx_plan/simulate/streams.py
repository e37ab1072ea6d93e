"""The two-stream simulator: when each item of an order runs on the compute and the communication stream of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx_plan.analyze.flow import Flow
from lynx_plan.analyze.replay import replay_ns, replayed, save_ns
from lynx_plan.model.graph import CostGraph, Phase, Role
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Event, Stream, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemTimes:
    """Durations per position of an order: on the compute stream, on the communication stream, and lost to contention.

    `steal_ns` is the compute time lost while that item's collective is in flight, spread evenly over the first
    `span_ns` of its `comm_ns`. `idle_ns`: the time that the compute stream has to itself between the forward and the
    backward pass (given windows); recomputations that the order puts there run in it.
    """

    compute_ns: tuple[int, ...]
    comm_ns: tuple[int, ...]
    steal_ns: tuple[int, ...]
    span_ns: tuple[int, ...]
    idle_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Start and end per position on both streams (ns); items without communication have equal comm start and end.

    A wait's compute interval is the time blocked.
    """

    compute: tuple[tuple[int, int], ...]
    comm: tuple[tuple[int, int], ...]
    blocked_ns: int  # in waits
    end_ns: int


def item_times(graph: CostGraph, items: Sequence[Item], *, idle_ns: int = 0) -> ItemTimes:
    """Durations of the items by the graph's costs, with what saving and replaying random states takes."""
    ops = [graph.ops[item.op] for item in items]
    compute_ns = [0 if op.role in (Role.VIEW, Role.WAIT) else op.time_ns for op in ops]
    again = replayed(graph, items)
    if again:
        for position, item in enumerate(items):
            if (item.op, item.microbatch) in again:
                compute_ns[position] += replay_ns(graph) if item.replica else save_ns(graph)
    return ItemTimes(
        compute_ns=tuple(compute_ns),
        comm_ns=tuple([op.comm_ns for op in ops]),
        steal_ns=tuple([op.steal_ns for op in ops]),
        span_ns=tuple([op.steal_span_ns or op.comm_ns for op in ops]),
        idle_ns=idle_ns,
    )


def joined(times: Sequence[ItemTimes]) -> ItemTimes:
    """The durations of orders that run one after the other."""
    return ItemTimes(
        compute_ns=tuple(ns for each in times for ns in each.compute_ns),
        comm_ns=tuple(ns for each in times for ns in each.comm_ns),
        steal_ns=tuple(ns for each in times for ns in each.steal_ns),
        span_ns=tuple(ns for each in times for ns in each.span_ns),
    )


def simulate(graph: CostGraph, items: Sequence[Item], flow: Flow, times: ItemTimes) -> Timeline:
    """The predicted timeline of one microbatch: all compute events, transfers, and waits that block."""
    clocks = run_clocks(graph, items, flow, times)
    compute, comm = [], []
    for position, item in enumerate(items):
        start, end = clocks.compute[position]
        role = graph.ops[item.op].role
        if role is not Role.VIEW and (role is not Role.WAIT or end > start):
            compute.append(
                Event(stream=Stream.COMPUTE, item=item, microbatch=item.microbatch, start_ns=start, end_ns=end)
            )
        if role is Role.COLLECTIVE:
            start, end = clocks.comm[position]
            comm.append(Event(stream=Stream.COMM, item=item, microbatch=item.microbatch, start_ns=start, end_ns=end))
    return Timeline(origin="predicted", events=tuple(compute + comm), end_ns=clocks.end_ns)


def run_clocks(graph: CostGraph, items: Sequence[Item], flow: Flow, times: ItemTimes) -> Clocks:
    """Run the items in order on two streams, in integer nanoseconds.

    A collective starts at the end of its launch or when the communication stream is free; a wait blocks until the
    one collective it reads is done; while one contends for the compute stream's resources (the first `span_ns` of
    its flight), compute runs at 1 - steal / span of its speed.
    """
    compute_stream = ComputeStream()
    compute: list[tuple[int, int]] = []
    comm: list[tuple[int, int]] = []
    comm_free = blocked = 0
    turn = idle_span(graph, items) if times.idle_ns else range(0)
    for position, item in enumerate(items):
        if times.idle_ns and position == turn.start:
            backward_ns = compute_stream.now + times.idle_ns
        if times.idle_ns and position == turn.stop:
            compute_stream.advance(backward_ns)
        role = graph.ops[item.op].role
        start = compute_stream.now
        transfer = (start, start)
        if role is Role.WAIT:
            source = flow.sources[position][0]
            compute_stream.advance(comm[source][1] if source >= 0 else start)
            blocked += compute_stream.now - start
        elif role is not Role.VIEW:
            compute_stream.work(times.compute_ns[position])
        if role is Role.COLLECTIVE:
            comm_start = max(compute_stream.now, comm_free)
            comm_free = comm_start + times.comm_ns[position]
            transfer = (comm_start, comm_free)
            span_end = min(comm_free, comm_start + times.span_ns[position])
            compute_stream.contend(comm_start, span_end, times.steal_ns[position])
        compute.append((start, compute_stream.now))
        comm.append(transfer)
    end = max(compute_stream.now, comm_free)
    return Clocks(compute=tuple(compute), comm=tuple(comm), blocked_ns=blocked, end_ns=end)


def idle_span(graph: CostGraph, items: Sequence[Item]) -> range:
    """Positions of what runs between the last forward original and the first backward one: in the given windows."""
    stop = next((i for i, item in enumerate(items) if graph.ops[item.op].phase is not Phase.FORWARD), len(items))
    start = stop
    while start and items[start - 1].replica:
        start -= 1
    return range(start, stop)


class ComputeStream:
    """The compute stream's clock, slowed while transfers with contention are in flight (they never overlap)."""

    def __init__(self) -> None:
        self.now = 0
        self.transfers: list[tuple[int, int, int]] = []  # start, end, steal; ascending
        self.next = 0  # the first transfer that may end after `now`

    def contend(self, start: int, end: int, steal_ns: int) -> None:
        if steal_ns > 0 and end > start:
            self.transfers.append((start, end, steal_ns))

    def advance(self, time_ns: int) -> None:
        """Stand idle until `time_ns`."""
        self.now = max(self.now, time_ns)

    def work(self, left_ns: int) -> None:
        """Run `left_ns` of undisturbed time; a transfer's share is rounded to whole nanoseconds per item."""
        while left_ns and self.next < len(self.transfers):
            start, end, steal = self.transfers[self.next]
            if end <= self.now:
                self.next += 1
                continue
            if self.now < start:
                free = min(left_ns, start - self.now)
                self.now, left_ns = self.now + free, left_ns - free
                continue
            length = end - start
            speed = max(0, length - steal)
            capacity = (end - self.now) * speed // length
            if left_ns <= capacity:
                self.now, left_ns = self.now + -(-left_ns * length // speed), 0
            else:
                self.now, left_ns = end, left_ns - capacity
        self.now += left_ns
