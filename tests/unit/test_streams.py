"""The two-stream simulator and outcomes: closed forms, and random orders against a clock that ticks in nanoseconds."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from lynx_plan.analyze.flow import resolve
from lynx_plan.model.graph import CostGraph, Phase, Role
from lynx_plan.model.plan import Outcome
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Stream, Timeline
from lynx_plan.simulate.outcome import outcome, predict
from lynx_plan.simulate.streams import item_times, simulate
from tests.unit.builders import GraphBuilder, chain_graph, megatron_graph, plain_order
from tests.unit.random_orders import random_graph, random_order


def run(graph: CostGraph, items: tuple[Item, ...]) -> Timeline:
    return simulate(graph, items, resolve(graph, items), item_times(graph, items))


def spans(timeline: Timeline, graph: CostGraph, stream: Stream = Stream.COMPUTE) -> list[tuple[str, int, int]]:
    events = [event for event in timeline.events if event.stream == stream]
    return [(graph.ops[event.item.op].name, event.start_ns, event.end_ns) for event in events]


def window_graph(*, comm_ns: int, inside_ns: int, launch_ns: int = 2, steal_ns: int = 0) -> CostGraph:
    """first, launch, inside (independent), wait, last."""
    b = GraphBuilder()
    b.layer("layer")
    x = b.source("x", 8)
    (first,) = b.op("first", (x,), (8,), time_ns=10)
    reduced = b.all_reduce("reduce", first, 8, Phase.FORWARD, comm_ns=comm_ns, launch_ns=launch_ns, steal_ns=steal_ns)
    (inside,) = b.op("inside", (x,), (8,), time_ns=inside_ns)
    b.op("last", (reduced, inside), (8,), time_ns=7)
    return b.build()


OVERLAPPED = tuple(map(Item, (0, 1, 3, 2, 4)))


def test_a_chain_takes_the_sum_of_its_ops() -> None:
    graph = chain_graph(3, time_ns=10)
    timeline = run(graph, plain_order(graph))
    assert timeline.origin == "predicted"
    assert timeline.end_ns == 60
    names = ("f0", "f1", "f2", "b2", "b1", "b0")
    expected = [(name, 10 * i, 10 * i + 10) for i, name in enumerate(names)]
    assert spans(timeline, graph) == [*expected, ("w_accumulate", 60, 60)]


def test_a_wait_blocks_for_what_the_window_leaves() -> None:
    graph = window_graph(comm_ns=20, inside_ns=5)
    timeline = run(graph, OVERLAPPED)
    assert spans(timeline, graph) == [
        ("first", 0, 10), ("reduce", 10, 12), ("inside", 12, 17), ("reduce_wait", 17, 32), ("last", 32, 39),
    ]  # fmt: skip
    assert spans(timeline, graph, Stream.COMM) == [("reduce", 12, 32)]


def test_a_wait_that_does_not_block_has_no_event() -> None:
    graph = window_graph(comm_ns=20, inside_ns=20)
    assert [name for name, _, _ in spans(run(graph, OVERLAPPED), graph)] == ["first", "reduce", "inside", "last"]


def test_without_overlap_the_transfer_is_exposed() -> None:
    graph = window_graph(comm_ns=20, inside_ns=5)
    assert run(graph, plain_order(graph)).end_ns == 10 + 2 + 20 + 5 + 7


@pytest.mark.parametrize(
    ("inside_ns", "steal_ns", "end_ns"),
    [
        (60, 25, 12 + 80),  # at 3/4 speed for all of it
        (75, 25, 12 + 100),  # exactly full
        (90, 25, 12 + 100 + 15),  # 75 done by the transfer's end, then at full speed
        (1, 25, 12 + 2),  # 4/3 ns, rounded up
        (30, 100, 12 + 100 + 30),  # compute stands still
        (30, 300, 12 + 100 + 30),
        (0, 25, 12),
    ],
)
def test_compute_is_slowed_while_a_transfer_is_in_flight(inside_ns: int, steal_ns: int, end_ns: int) -> None:
    graph = window_graph(comm_ns=100, inside_ns=inside_ns, steal_ns=steal_ns)
    inside = next(span for span in spans(run(graph, OVERLAPPED), graph) if span[0] == "inside")
    assert inside == ("inside", 12, end_ns)


@pytest.mark.parametrize(
    ("inside_ns", "end_ns"),
    [
        (10, 12 + 20),  # at half speed while the first 40 ns contend
        (20, 12 + 40),  # exactly those
        (50, 12 + 40 + 30),  # 20 done by then, the rest at full speed though the transfer goes on
    ],
)
def test_contention_may_fall_on_the_first_part_of_a_transfer(inside_ns: int, end_ns: int) -> None:
    graph = window_graph(comm_ns=100, inside_ns=inside_ns, steal_ns=20)
    graph = replace(graph, ops=tuple(replace(op, steal_span_ns=40 if op.steal_ns else 0) for op in graph.ops))
    timeline = run(graph, OVERLAPPED)
    assert next(span for span in spans(timeline, graph) if span[0] == "inside") == ("inside", 12, end_ns)
    assert spans(timeline, graph, Stream.COMM) == [("reduce", 12, 112)]


def two_transfers() -> CostGraph:
    """a, b launched one after the other, the first over a slow and the second over a fast transfer; then waited."""
    b = GraphBuilder()
    b.layer("layer")
    x = b.source("x", 8)
    for name, comm_ns, steal_ns in (("a", 30, 0), ("b", 10, 5)):
        b.all_reduce(name, x, 8, Phase.FORWARD, comm_ns=comm_ns, launch_ns=1, steal_ns=steal_ns)
    b.op("work", (x,), (8,), time_ns=34)
    return b.build()


def test_transfers_queue_on_one_stream_and_contention_changes_in_mid_op() -> None:
    graph = two_transfers()
    timeline = run(graph, tuple(map(Item, (0, 2, 4, 1, 3))))
    assert spans(timeline, graph, Stream.COMM) == [("a", 1, 31), ("b", 31, 41)]
    # 29 ns of work beside a at full speed, then 5 ns beside b at half speed
    assert spans(timeline, graph)[2] == ("work", 2, 41)
    assert timeline.end_ns == 41


def test_a_step_ends_when_both_streams_have() -> None:
    graph = two_transfers()
    timeline = run(graph, tuple(map(Item, (4, 0, 1, 2))))  # b is launched and not waited for
    assert timeline.end_ns == 34 + 1 + 30 + 1 + 10


def test_views_take_no_time_and_have_no_event() -> None:
    graph = megatron_graph(1)
    graph = replace(graph, ops=tuple(replace(op, time_ns=5) if op.role is Role.VIEW else op for op in graph.ops))
    timeline = run(graph, plain_order(graph))
    assert timeline.end_ns == run(megatron_graph(1), plain_order(graph)).end_ns
    assert not any(graph.ops[event.item.op].role is Role.VIEW for event in timeline.events)


@pytest.mark.parametrize("seed", range(20))
def test_random_orders_against_a_ticking_clock(seed: int) -> None:
    graph = random_graph(seed, ops=12)
    graph = replace(graph, ops=tuple(replace(op, steal_ns=0) for op in graph.ops))
    items = random_order(graph, random.Random(seed))
    timeline = run(graph, items)
    assert (spans(timeline, graph), spans(timeline, graph, Stream.COMM)) == ticking_clock(graph, items)


@pytest.mark.parametrize("seed", range(20))
def test_random_orders_with_contention_against_a_ticking_clock(seed: int) -> None:
    graph = random_graph(seed, ops=12)
    items = random_order(graph, random.Random(seed))
    compute, comm = ticking_clock(graph, items)
    # each rounds an item to whole nanoseconds, so they may part by less than two per item
    assert abs(run(graph, items).end_ns - max(end for _, _, end in compute + comm)) <= 2 * len(items)


def ticking_clock(
    graph: CostGraph, items: tuple[Item, ...]
) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """Both streams stepped nanosecond by nanosecond; exact fractions of work under contention."""
    sources = resolve(graph, items).sources
    done_at: dict[int, int] = {}  # position -> end of its transfer
    queue: list[int] = []  # launched, transfer not finished
    compute: list[tuple[str, int, int]] = []
    comm: list[tuple[str, int, int]] = []
    position, now, started, left, transferred = 0, 0, -1, Fraction(0), 0
    while position < len(items) or queue:
        while position < len(items):  # everything that needs no more time now
            op = graph.ops[items[position].op]
            if started < 0:
                started, left = now, Fraction(op.time_ns if op.role not in (Role.VIEW, Role.WAIT) else 0)
            if left > 0 or (op.role is Role.WAIT and sources[position][0] not in done_at):
                break
            if op.role is not Role.VIEW and (op.role is not Role.WAIT or now > started):
                compute.append((op.name, started, now))
            if op.role is Role.COLLECTIVE:
                queue.append(position)
            position, started = position + 1, -1
        if queue:
            flying = graph.ops[items[queue[0]].op]
            left -= 1 - Fraction(min(flying.steal_ns, flying.comm_ns), flying.comm_ns)
            transferred += 1
        else:
            left -= 1
        now += 1
        if queue and transferred == flying.comm_ns:
            comm.append((flying.name, now - flying.comm_ns, now))
            done_at[queue.pop(0)] = now
            transferred = 0
    return compute, comm


def recompute_graph(*, comm_ns: int) -> CostGraph:
    """Forward a then f (the loss); backward: a collective's window, then g which reads a."""
    b = GraphBuilder()
    b.layer("layer")
    x = b.source("x", 8)
    (a,) = b.op("a", (x,), (100,), time_ns=30)
    (loss,) = b.op("f", (a,), (8,), time_ns=10)
    gradient = b.all_reduce("r", loss, 8, Phase.BACKWARD, comm_ns=comm_ns, launch_ns=1)
    (g,) = b.op("g", (gradient, a), (8,), phase=Phase.BACKWARD, time_ns=10)
    b.accumulate("w", g)
    return b.build(outputs=(loss,), optimizer_ns=1000)


IN_WINDOW = (Item(0), Item(1), Item(2), Item(0, 1), Item(3), Item(4), Item(5))
ON_DEMAND = (Item(0), Item(1), Item(2), Item(3), Item(0, 1), Item(4), Item(5))


@pytest.mark.parametrize(
    ("items", "comm_ns", "hidden_ns", "exposed_ns", "blocked_ns"),
    [
        (IN_WINDOW, 50, 30, 0, 20),  # fits
        (IN_WINDOW, 30, 30, 0, 0),
        (IN_WINDOW, 20, 20, 10, 0),  # 10 more than the window holds
        (ON_DEMAND, 50, 0, 30, 50),
    ],
)
def test_hidden_and_exposed_recompute(
    items: tuple[Item, ...], comm_ns: int, hidden_ns: int, exposed_ns: int, blocked_ns: int
) -> None:
    graph = recompute_graph(comm_ns=comm_ns)
    found = predict(graph, items, micro_batches=3)
    program_ns = 30 + 10 + 1 + comm_ns + 10 + exposed_ns
    assert found == Outcome(
        step_ns=3 * program_ns + 1000,
        peak_bytes=graph.static.total_bytes + 124,
        peak_activation_bytes=124,  # g reads the reduced gradient and a, writes its own; the loss is alive
        recompute_hidden_ns=3 * hidden_ns,
        recompute_exposed_ns=3 * exposed_ns,
        comm_exposed_ns=3 * blocked_ns,
    )


def test_a_recomputed_collective_counts_its_transfer() -> None:
    b = GraphBuilder()
    b.layer("layer")
    (a,) = b.op("a", (b.source("x", 8),), (8,), time_ns=5)
    y = b.all_reduce("r", a, 8, Phase.FORWARD, comm_ns=40, launch_ns=2)
    (g,) = b.op("g", (y,), (8,), phase=Phase.BACKWARD, time_ns=10)
    graph = b.build(outputs=(g,))
    items = (*map(Item, range(3)), Item(1, 1), Item(2, 1), Item(3))
    found = predict(graph, items)
    assert (found.recompute_exposed_ns, found.recompute_hidden_ns, found.comm_exposed_ns) == (42, 0, 80)


def test_measured_durations_and_peak_go_through_the_same_code() -> None:
    graph = recompute_graph(comm_ns=20)
    times = item_times(graph, IN_WINDOW)
    measured = replace(times, compute_ns=tuple(2 * t for t in times.compute_ns))
    found = outcome(graph, IN_WINDOW, measured, peak_activation_bytes=77)
    assert (found.recompute_exposed_ns, found.recompute_hidden_ns) == (40, 20)
    assert (found.peak_activation_bytes, found.peak_bytes) == (77, graph.static.total_bytes + 77)
