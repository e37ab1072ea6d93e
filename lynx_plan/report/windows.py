"""The windows of one layer as a table: how long each is, and what runs in it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from lynx_plan.analyze.windows import Window
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.program import Item
from lynx_plan.report.names import op_name
from lynx_plan.report.policies import local_names
from lynx_plan.report.style import make_table, titled
from lynx_plan.units import format_ms


def windows_table(graph: CostGraph, items: Sequence[Item], windows: Sequence[Window], layer: int) -> RenderableType:
    """One row per window of `layer`, in launch order; fill counts weight gradients and recomputation.

    Overlapping windows both count what runs in both.
    """
    names = local_names(windows)
    table = make_table()
    for heading in ("window", "number", "pass", "collective"):
        table.add_column(heading, no_wrap=True)
    for heading in ("capacity", "weight gradients", "recompute", "other", "fill"):
        table.add_column(heading, justify="right", no_wrap=True)
    for window in sorted(windows, key=lambda window: window.launch):
        if window.layer != layer:
            continue
        op = graph.ops[items[window.launch].op]
        table.add_row(
            names[window.id],
            window.name,
            str(window.phase).replace("_", " "),
            op_name(op, graph.layers[layer]),
            format_ms(window.capacity_ns),
            format_ms(window.weight_gradient_ns),
            format_ms(window.recompute_ns),
            format_ms(window.other_ns),
            fill_text(window),
        )
    return titled(f"windows of {graph.layers[layer].name}", table)


def fill_text(window: Window) -> str:
    """The share of a window's capacity that weight gradients and recomputation use."""
    if not window.capacity_ns:
        return "-"
    return f"{100 * (window.weight_gradient_ns + window.recompute_ns) / window.capacity_ns:.0f} %"
