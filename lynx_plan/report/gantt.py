"""A two-stream Gantt chart of a stretch of a timeline, in text. Symbols tell kinds of work apart; colour only helps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

from lynx_plan.model.graph import CostGraph, Phase, Role
from lynx_plan.model.timeline import Event, Stream, Timeline
from lynx_plan.units import format_ms


class Work(StrEnum):
    """Kinds of work in a cell; where two take equal shares of it, the earlier one here is shown."""

    RECOMPUTE = "recompute"
    WEIGHT_GRADIENT = "weight_gradient"
    BACKWARD = "backward"
    FORWARD = "forward"
    COMM = "comm"
    IDLE = "idle"


BLOCKS = {"recompute": "▒", "weight_gradient": "▓", "backward": "█", "forward": "▞", "comm": "▬", "idle": "·"}
ASCII = {"recompute": "R", "weight_gradient": "W", "backward": "B", "forward": "F", "comm": "=", "idle": "."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a timeline: `[start_ns, end_ns)`."""

    start_ns: int
    end_ns: int


def backward_span(graph: CostGraph, timeline: Timeline, layer: int) -> Span:
    """From the start to the end of a layer's original backward items, of the first microbatch; the whole timeline if
    it has none."""
    members = set(graph.layers[layer].ops)
    events = [
        event
        for event in timeline.events
        if event.item.replica == 0
        and event.microbatch == 0
        and event.item.op in members
        and graph.ops[event.item.op].phase != Phase.FORWARD
    ]
    if not events:
        return Span(start_ns=0, end_ns=timeline.end_ns)
    return Span(start_ns=min(event.start_ns for event in events), end_ns=max(event.end_ns for event in events))


def gantt(graph: CostGraph, timeline: Timeline, span: Span, *, width: int, ascii_only: bool) -> Text:
    """The compute and the communication stream over `span` in `width` cells a row, with an axis and a legend."""
    symbols = ASCII if ascii_only else BLOCKS
    text = Text()
    shown: set[Work] = set()
    for stream in Stream:
        cells = _cells(graph, (e for e in timeline.events if e.stream == stream), span, width)
        text.append(f"{stream:<8}", style="label")
        for cell in cells:
            text.append(symbols[cell], style=str(cell))
        text.append("\n")
        shown.update(cells)
    text.append(_axis(span, width), style="label")
    text.append("\n")
    for work in Work:
        if work in shown:
            text.append(f"{symbols[work]}", style=str(work))
            text.append(f" {work.replace('_', ' ')}   ")
    text.rstrip()
    return text


def work_of(graph: CostGraph, event: Event) -> Work:
    """What kind of work an event is; a wait's event is time blocked."""
    op = graph.ops[event.item.op]
    if event.stream == Stream.COMM:
        return Work.COMM
    if op.role == Role.WAIT:
        return Work.IDLE
    if event.item.replica:
        return Work.RECOMPUTE
    return {Phase.FORWARD: Work.FORWARD, Phase.BACKWARD: Work.BACKWARD}.get(op.phase, Work.WEIGHT_GRADIENT)


def _cells(graph: CostGraph, events: Iterable[Event], span: Span, width: int) -> list[Work]:
    """What takes the largest share of each cell; recomputation, the point of the picture, from a quarter on."""
    length = max(1, span.end_ns - span.start_ns)
    shares: list[dict[Work, int]] = [{} for _ in range(width)]
    for event in events:
        start, end = max(event.start_ns, span.start_ns), min(event.end_ns, span.end_ns)
        if start >= end:
            continue
        work = work_of(graph, event)
        first, last = ((t - span.start_ns) * width // length for t in (start, end - 1))
        for cell in range(first, last + 1):
            cell_start, cell_end = (span.start_ns + (cell + i) * length // width for i in (0, 1))
            covered = max(0, min(end, cell_end) - max(start, cell_start))
            shares[cell][work] = shares[cell].get(work, 0) + covered
    order = list(Work)
    cell_ns = length / width
    cells = []
    for share in shares:
        share[Work.IDLE] = share.get(Work.IDLE, 0) + max(0, round(cell_ns) - sum(share.values()))
        if 4 * share.get(Work.RECOMPUTE, 0) >= cell_ns:
            cells.append(Work.RECOMPUTE)
        else:
            cells.append(max(share, key=lambda work: (share[work], -order.index(work))))
    return cells


def _axis(span: Span, width: int) -> str:
    """The span's length under the bars."""
    end = format_ms(span.end_ns - span.start_ns)
    return " " * 8 + "0" + end.rjust(width - 1)
