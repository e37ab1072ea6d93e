"""Frontiers as a table, a chart in text and a document: step time against peak memory, a letter per algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lynx_plan.report.documents import Document
from lynx_plan.report.style import make_table, titled
from lynx_plan.units import format_bytes, format_ms

WIDTH, HEIGHT = 72, 18
LABEL = 12
KNEE = "*"


class Point(Protocol):
    """What is shown of a plan."""

    @property
    def algo(self) -> str: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def step_ns(self) -> int: ...


def render_frontier(points: Sequence[Point], knee: Point | None, title: str) -> RenderableType:
    """Table, chart and legend."""
    letters = letters_of(points)
    legend = ", ".join(f"{letter} {algo}" for algo, letter in letters.items())
    knee_text = f"; {KNEE} knee: more memory than {format_bytes(knee.peak_bytes)} pays less" if knee else ""
    return Group(
        titled(title, _table(points, knee, letters)),
        Text(""),
        Text("step time against peak memory", style="title"),
        chart(points, knee, letters),
        Text(f"{legend}{knee_text}", style="label"),
    )


def frontier_document(points: Sequence[Point], knee: Point | None) -> Document:
    """What `lynx plan --frontier --json` prints."""
    return {"points": [_document(point) for point in points], "knee": _document(knee) if knee else None}


def letters_of(points: Sequence[Point]) -> dict[str, str]:
    """Algorithm -> a letter: its first that is free."""
    found: dict[str, str] = {}
    for algo in dict.fromkeys(point.algo for point in points):
        wanted = (c for c in algo.lower() + ascii_lowercase if c in ascii_lowercase and c not in found.values())
        found[algo] = next(wanted, "?")
    return found


def _document(point: Point) -> Document:
    return {
        "algo": point.algo,
        "budget_bytes": point.budget_bytes,
        "peak_bytes": point.peak_bytes,
        "step_ns": point.step_ns,
    }


def _table(points: Sequence[Point], knee: Point | None, letters: dict[str, str]) -> Table:
    table = make_table()
    table.add_column("", no_wrap=True)
    table.add_column("plan", no_wrap=True)
    for heading in ("budget", "peak", "step"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for point in points:
        table.add_row(
            letters[point.algo],
            point.algo,
            format_bytes(point.budget_bytes),
            format_bytes(point.peak_bytes),
            format_ms(point.step_ns),
            f"{KNEE} knee" if point is knee else "",
        )
    return table


def chart(points: Sequence[Point], knee: Point | None, letters: dict[str, str]) -> Text:
    """A grid of `WIDTH` x `HEIGHT` cells: memory to the right, time upwards; later algorithms cover earlier ones."""
    left, right = min(p.peak_bytes for p in points), max(p.peak_bytes for p in points)
    low, high = min(p.step_ns for p in points), max(p.step_ns for p in points)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for point in points:
        column = _cell(point.peak_bytes, left, right, WIDTH)
        row = _cell(point.step_ns, low, high, HEIGHT)
        cells[row][column] = KNEE if point is knee else letters[point.algo]
    text = Text()
    for row in reversed(range(HEIGHT)):
        label = format_ms(high) if row == HEIGHT - 1 else format_ms(low) if row == 0 else ""
        text.append(f"{label:>{LABEL}} |", style="label")
        text.append("".join(cells[row]) + "\n")
    ends = f"{format_bytes(left)}{format_bytes(right):>{WIDTH - len(format_bytes(left))}}"
    text.append(f"{'':>{LABEL}} +{'-' * WIDTH}\n{'':>{LABEL + 2}}{ends}", style="label")
    return text


def _cell(value: int, low: int, high: int, cells: int) -> int:
    return (value - low) * (cells - 1) // (high - low) if high > low else 0
