"""What a search says of itself: the line shown while it runs, and the facts that its plan keeps."""

from __future__ import annotations

from math import isfinite

from lynx_plan.model.plan import GivenWindow, Plan
from lynx_plan.solve.base import Progress
from lynx_plan.units import format_ms


def progress_text(now: Progress) -> str:
    """`planning: 100.17 ms, at best 99.80 ms, gap 0.37 %, 12 nodes`."""
    bound = f"at best {format_ms(now.bound_ns)}" if now.bound_ns > 0 and isfinite(now.gap) else "no bound yet"
    gap = f", gap {now.gap:.2%}" if isfinite(now.gap) else ""
    return f"planning: {format_ms(now.incumbent_ns)}, {bound}{gap}, {now.nodes} nodes"


def search_rows(plan: Plan) -> list[tuple[str, str]]:
    """What the plan states of its search, and the idle time it was given; nothing where it has neither."""
    rows = []
    if plan.options:
        rows.append(("proof", ", ".join(_fact(key, text) for key, text in plan.options)))
    if plan.windows:
        rows.append(("idle time", "; ".join(window_text(window) for window in plan.windows)))
    return rows


def window_text(window: GivenWindow) -> str:
    """`bubble, 20.00 ms`."""
    return f"{window.kind}, {format_ms(window.room_ns)}"


def _fact(key: str, text: str) -> str:
    """A fact in words; figures of other solvers as they are."""
    if key == "bound_ns":
        return f"at best {format_ms(int(text))}" if int(text) > 0 else "no bound"
    if key == "gap":
        return f"gap {float(text):.2%}" if isfinite(float(text)) else "no gap"
    return f"{text} {key}" if key == "nodes" else f"{key} {text}"
