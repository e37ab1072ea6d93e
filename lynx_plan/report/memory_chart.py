"""Activation memory over the backward pass as an area chart in text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Stream, Timeline
from lynx_plan.report.policies import is_original_forward
from lynx_plan.units import format_bytes

BLOCKS = " ▁▂▃▄▅▆▇█"
LABEL = 12


def backward_pass(graph: CostGraph, items: Sequence[Item]) -> range:
    """Positions after the last original forward item."""
    forward = max((i for i, item in enumerate(items) if is_original_forward(graph, item)), default=-1)
    return range(forward + 1, len(items))


def memory_over(
    items: Sequence[Item], bytes_: Sequence[int], timeline: Timeline, span: range, *, width: int
) -> tuple[int, ...]:
    """The highest activation bytes in each of `width` equal times of these positions.

    An item holds its bytes from its start on the compute stream until the next one's; what follows the span in the
    timeline ends it.
    """
    starts = {event.item: event.start_ns for event in timeline.events if event.stream == Stream.COMPUTE}
    if not span:
        return ()
    clock = begin = next((starts[items[p]] for p in span if items[p] in starts), 0)
    end = next((starts[item] for item in items[span.stop :] if item in starts), timeline.end_ns)
    cells = [0] * width
    length = max(1, end - begin)
    cell, current = 0, 0
    for position in span:
        item, size = items[position], bytes_[position]
        clock = max(clock, starts.get(item, clock))
        reached = min(width - 1, (clock - begin) * width // length)
        for passed in range(cell + 1, reached):
            cells[passed] = current
        cell, current = reached, size
        cells[cell] = max(cells[cell], size)
    for rest in range(cell + 1, width):
        cells[rest] = current
    return tuple(cells)


def memory_chart(curve: Sequence[int], *, height: int, ascii_only: bool) -> Text:
    """The curve as `height` rows of columns, with the highest value at the top of the axis."""
    top = max(curve, default=0)
    text = Text()
    for row in reversed(range(height)):
        label = format_bytes(top) if row == height - 1 else "0" if row == 0 else ""
        text.append(f"{label:>{LABEL}} ", style="label")
        text.append("".join(_column(value, top, row, height, ascii_only) for value in curve), style="memory")
        if row:
            text.append("\n")
    return text


def _column(value: int, top: int, row: int, height: int, ascii_only: bool) -> str:
    eighths = value * height * 8 // top - row * 8 if top else 0
    if ascii_only:
        return "#" if eighths >= 4 else " "
    return BLOCKS[max(0, min(8, eighths))]
