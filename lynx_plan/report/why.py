"""The answer of `lynx inspect --why`: as lines and as a document."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from lynx_plan.report.documents import Document
from lynx_plan.report.style import facts, make_table, titled
from lynx_plan.solve.why import Why
from lynx_plan.units import format_bytes, format_ms

SHOWN = 8


def render_why(why: Why) -> RenderableType:
    """What is done with the value, why, and what the opposite would do."""
    decision = f"made again {why.where}" if why.recomputed else "kept"
    opposite = "keeping it" if why.recomputed else "making it again on demand"
    more = f" and {len(why.again) - SHOWN} more" if len(why.again) > SHOWN else ""
    rows = [
        ("value", f"{why.layer}.{why.name}, {format_bytes(why.bytes)}"),
        ("decision", decision),
        ("because", f"{why.binding}: {why.reason}"),
        ("to make it", f"{format_ms(why.again_ns)}: {', '.join(why.again[:SHOWN])}{more}"),
        ("now", f"step {format_ms(why.step_ns)}, peak {format_bytes(why.peak_bytes)}"),
        (opposite, _other(why)),
        ("budget", format_bytes(why.budget_bytes)),
    ]
    parts: list[RenderableType] = [facts(rows)]
    if why.rooms:
        parts += [Text(""), _rooms(why)]
    return Group(*parts)


def why_document(why: Why) -> Document:
    """What `lynx inspect --why --json` prints."""
    document: Document = asdict(why)
    for room, record in zip(document["rooms"], why.rooms, strict=True):
        room["left_ns"] = record.left_ns
    return document


def _other(why: Why) -> str:
    if not why.other_step_ns:
        return "not legal"
    return f"step {format_ms(why.other_step_ns)}, peak {format_bytes(why.other_peak_bytes)}"


def _rooms(why: Why) -> RenderableType:
    table = make_table()
    for heading in ("window", "of layer"):
        table.add_column(heading, no_wrap=True)
    for heading in ("transfer", "weight gradients", "recompute", "room left"):
        table.add_column(heading, justify="right", no_wrap=True)
    for room in why.rooms:
        times = (room.capacity_ns, room.weight_gradient_ns, room.recompute_ns, room.left_ns)
        table.add_row(room.name, room.layer, *map(format_ms, times))
    return titled("windows before its first backward use", table)
