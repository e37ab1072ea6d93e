"""Gantt and memory charts of hand-made timelines: which symbol stands where."""

from __future__ import annotations

from lynx_plan.model.graph import Phase
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Event, Stream, Timeline
from lynx_plan.report.gantt import Span, backward_span, gantt
from lynx_plan.report.memory_chart import memory_chart, memory_over
from tests.unit.builders import GraphBuilder, chain_graph


def event(op: int, start: int, end: int, *, stream: Stream = Stream.COMPUTE, replica: int = 0) -> Event:
    return Event(stream=stream, item=Item(op, replica), start_ns=start, end_ns=end)


def drawn(events: tuple[Event, ...], *, end: int, width: int) -> list[str]:
    """The rows of the chart of a graph with a forward, a backward and a weight gradient op and a collective."""
    b = GraphBuilder()
    b.layer("layers.0")
    x = b.source("x", 4)
    b.op("f", (x,), (4,))
    b.op("b", (x,), (4,), phase=Phase.BACKWARD)
    b.op("w", (x,), (4,), phase=Phase.WEIGHT_GRADIENT)
    b.all_reduce("c", x, 4, Phase.BACKWARD, comm_ns=1)
    timeline = Timeline(origin="predicted", events=events, end_ns=end)
    text = gantt(b.build(), timeline, Span(start_ns=0, end_ns=end), width=width, ascii_only=True)
    return text.plain.splitlines()


def test_each_kind_of_work_has_its_symbol() -> None:
    events = (
        event(0, 0, 10),
        event(1, 10, 20),
        event(2, 20, 30),
        event(0, 30, 40, replica=1),
        event(4, 40, 50),
        event(3, 10, 50, stream=Stream.COMM),
    )
    compute, comm, axis, legend = drawn(events, end=50, width=5)
    assert compute == "compute FBWR."
    assert comm == "comm    .===="
    assert axis.startswith("        0")
    assert axis.endswith("0.00 ms")
    for word in ("R recompute", "W weight gradient", "B backward", "F forward", "= comm", ". idle"):
        assert word in legend


def test_a_cell_shows_what_takes_most_of_it() -> None:
    assert drawn((event(1, 0, 6), event(2, 6, 10)), end=10, width=1)[0] == "compute B"
    assert drawn((event(1, 0, 4), event(2, 4, 10)), end=10, width=1)[0] == "compute W"
    assert drawn((event(1, 0, 4),), end=10, width=1)[0] == "compute ."


def test_recomputation_is_shown_from_a_quarter_of_a_cell_on() -> None:
    assert drawn((event(1, 0, 7), event(0, 7, 10, replica=1)), end=10, width=1)[0] == "compute R"
    assert drawn((event(1, 0, 8), event(0, 8, 10, replica=1)), end=10, width=1)[0] == "compute B"


def test_the_span_is_that_of_a_layers_original_backward() -> None:
    graph = chain_graph(2)
    events = (event(0, 0, 10), event(1, 10, 20), event(2, 20, 30), event(0, 30, 35, replica=1), event(3, 35, 45))
    timeline = Timeline(origin="predicted", events=events, end_ns=45)
    assert backward_span(graph, timeline, 1) == Span(start_ns=20, end_ns=30)
    assert backward_span(graph, timeline, 0) == Span(start_ns=35, end_ns=45)


def test_memory_is_the_highest_in_each_cell_and_stays_until_it_changes() -> None:
    graph = chain_graph(2)
    items = [Item(op.id) for op in graph.ops]
    events = (event(0, 0, 10), event(1, 10, 20), event(2, 20, 60), event(3, 60, 80), event(4, 80, 100))
    timeline = Timeline(origin="predicted", events=events, end_ns=100)
    assert memory_over(items, (1, 2, 30, 20, 10), timeline, range(2, 5), width=8) == (30, 30, 30, 30, 20, 20, 10, 10)


def test_area_chart() -> None:
    rows = memory_chart((4 << 20, 2 << 20, 0), height=2, ascii_only=True).plain.splitlines()
    assert rows == ["    4.00 MiB #  ", "           0 ## "]
    rows = memory_chart((8, 5, 1), height=1, ascii_only=False).plain.splitlines()
    assert rows == ["         8 B █▅▁"]
    assert memory_chart((), height=2, ascii_only=True).plain.splitlines() == ["         0 B ", "           0 "]
