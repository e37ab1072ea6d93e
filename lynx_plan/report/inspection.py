"""Everything that `lynx inspect` shows of a plan or a profile: gathered once, as renderables and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lynx_plan.analyze.flow import Flow, resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import expand_step
from lynx_plan.analyze.windows import Window, windows
from lynx_plan.model.graph import CostGraph
from lynx_plan.model.plan import Plan
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Timeline
from lynx_plan.report.documents import Document, predicted_document
from lynx_plan.report.gantt import backward_span, gantt
from lynx_plan.report.memory_chart import backward_pass, memory_chart, memory_over
from lynx_plan.report.names import layer_range, mesh_text, model_text
from lynx_plan.report.policies import ON_DEMAND, Policy, policies
from lynx_plan.report.progress import search_rows
from lynx_plan.report.style import CHART_WIDTH, facts, make_table, titled
from lynx_plan.report.summary import budget_text, interleaved, order_rows, peak_text, recompute_text
from lynx_plan.report.windows import fill_text, windows_table
from lynx_plan.simulate.memory import MemoryCurve, memory_curve
from lynx_plan.simulate.streams import item_times, simulate
from lynx_plan.units import format_bytes, format_ms

CHART_HEIGHT = 8
PLACE_WIDTH = 44


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A plan laid over the profile it came from.

    `items`, `flow`, `windows` and `policies` are of one microbatch by itself. `shown` is what the pictures show: the
    same, or two microbatches that interleave, with its timeline and memory; `span` are the positions of the backward
    pass in it.
    """

    plan: Plan
    graph: CostGraph
    items: tuple[Item, ...]
    flow: Flow
    windows: tuple[Window, ...]
    policies: tuple[Policy, ...]
    shown: tuple[Item, ...]
    span: range
    timeline: Timeline
    memory: MemoryCurve


def inspect_plan(plan: Plan, graph: CostGraph) -> Inspection:
    """Expand, resolve and simulate a plan of this profile."""
    index = GraphIndex(graph)
    order = expand_step(plan.stages[0].program, graph.layers)
    items = order.alone
    flow = resolve(graph, items)
    found = windows(graph, items, flow)
    idle_ns = sum(window.room_ns for window in plan.windows)
    unrolled = order.unrolled(2 if order.interleaved else 1)
    shown, shown_flow = unrolled.items, resolve(graph, unrolled.items, unrolled.starts)
    return Inspection(
        plan=plan,
        graph=graph,
        items=items,
        flow=flow,
        windows=found,
        policies=policies(index, items, flow, found),
        shown=shown,
        span=unrolled.span(1) if order.interleaved else backward_pass(graph, items),
        timeline=simulate(graph, shown, shown_flow, item_times(graph, shown, idle_ns=idle_ns)),
        memory=memory_curve(graph, shown, shown_flow),
    )


def shown_layer(view: Inspection) -> int:
    """The layer to show unless told: the middle one of the policy that most layers share."""
    policy = max(view.policies, key=lambda policy: (len(policy.layers), bool(policy.recomputed)))
    return policy.layers[len(policy.layers) // 2]


def render_header(plan: Plan) -> Table:
    """Model, parallelism, budget and prediction: all of it from the plan alone."""
    predicted = plan.predicted
    return facts(
        [
            ("model", f"{model_text(plan.model)}, {mesh_text(plan.mesh)}"),
            ("plan", f"{plan.algo}, {plan.status}, micro-batches {plan.micro_batches}"),
            *order_rows(plan),
            ("budget", budget_text(plan)),
            ("step", f"{format_ms(predicted.step_ns)} predicted"),
            ("peak", peak_text(predicted)),
            ("recompute", recompute_text(predicted)),
            ("communication", f"{format_ms(predicted.comm_exposed_ns)} exposed"),
            *search_rows(plan),
        ]
    )


def render_classes(plan: Plan) -> RenderableType:
    """Layer classes as the plan knows them, where the profile is not at hand."""
    table = make_table()
    table.add_column("class", no_wrap=True)
    table.add_column("layers", justify="right", no_wrap=True)
    table.add_column("ops per layer", justify="right", no_wrap=True)
    for stage in plan.stages:
        for known in stage.classes:
            table.add_row(known.name, str(len(known.layers)), str(len(known.ops)))
    return titled("layer classes", table)


def render_plan(view: Inspection, *, layer: int, ascii_only: bool, width: int) -> RenderableType:
    """The whole inspection, for a terminal of `width` cells."""
    graph, chart = view.graph, min(CHART_WIDTH, width) - 14
    span = backward_span(graph, view.timeline, layer)
    curve = memory_over(view.shown, view.memory.bytes, view.timeline, view.span, width=chart)
    blank, peak = Text(""), format_bytes(view.memory.peak_bytes)
    return Group(
        render_header(view.plan), blank,
        policies_table(graph, view.policies), blank,
        windows_table(graph, view.items, view.windows, layer), blank,
        Text(f"backward of {graph.layers[layer].name}", style="title"),
        gantt(graph, view.timeline, span, width=chart, ascii_only=ascii_only), blank,
        Text(f"activations over the backward pass (peak of the step {peak})", style="title"),
        memory_chart(curve, height=CHART_HEIGHT, ascii_only=ascii_only),
    )  # fmt: skip


def policies_table(graph: CostGraph, rows: Sequence[Policy]) -> RenderableType:
    """One row per layer class and policy."""
    table = make_table()
    for heading in ("layers", "class"):
        table.add_column(heading, no_wrap=True)
    table.add_column("K per layer", justify="right", no_wrap=True)
    table.add_column("recompute per layer", justify="right", no_wrap=True)
    table.add_column("recomputed ops", overflow="fold")
    for policy in rows:
        table.add_row(
            layer_range([graph.layers[layer] for layer in policy.layers]),
            policy.class_name,
            format_bytes(policy.kept_bytes),
            format_ms(sum(entry.time_ns for entry in policy.recomputed)),
            places_text(policy),
        )
    return titled("policies (K kept, R recomputed in a window, D recomputed on demand)", table)


def places_text(policy: Policy) -> str:
    """`R bw9: gelu, qkv.mm`, one line per place."""
    lines: dict[str, list[str]] = {}
    for entry in policy.recomputed:
        label = "D" if entry.where == ON_DEMAND else f"R {entry.where}"
        lines.setdefault(label, []).append(entry.name)
    return "\n".join(_broken(f"{label}: {', '.join(names)}") for label, names in lines.items()) or "-"


def _broken(text: str) -> str:
    """A long list over several lines, so that a piped table stays readable; nothing is left out."""
    return "\n".join(wrap(text, PLACE_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def plan_inspection_document(view: Inspection) -> Document:
    """What `lynx inspect plan.json --json` prints."""
    plan = view.plan
    return {
        **header_document(plan),
        "policies": [_policy_document(view.graph, policy) for policy in view.policies],
        "windows": [_window_document(view, window) for window in view.windows],
        "memory": {
            "peak_activation_bytes": view.memory.peak_bytes,
            "peak_item": str(view.shown[view.memory.peak_position]),
        },
    }


def header_document(plan: Plan) -> Document:
    """The part that needs no profile."""
    return {
        "kind": plan.kind,
        "model": model_text(plan.model),
        "mesh": dict(plan.mesh),
        "algo": plan.algo,
        "status": plan.status,
        "budget": plan.budget_text,
        "budget_bytes": plan.budget_bytes,
        "micro_batches": plan.micro_batches,
        "interleaved": interleaved(plan),
        "predicted": predicted_document(plan.predicted),
    }


def _policy_document(graph: CostGraph, policy: Policy) -> Document:
    return {
        "class": policy.class_name,
        "layers": [graph.layers[layer].name for layer in policy.layers],
        "kept_bytes_per_layer": policy.kept_bytes,
        "recomputed": [
            {"op": e.name, "slot": e.slot, "replica": e.replica, "where": e.where, "time_ns": e.time_ns}
            for e in policy.recomputed
        ],
    }


def _window_document(view: Inspection, window: Window) -> Document:
    return {
        "name": window.name,
        "layer": view.graph.layers[window.layer].name,
        "pass": str(window.phase),
        "capacity_ns": window.capacity_ns,
        "weight_gradient_ns": window.weight_gradient_ns,
        "recompute_ns": window.recompute_ns,
        "other_ns": window.other_ns,
        "fill": fill_text(window),
    }
