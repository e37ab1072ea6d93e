"""What `lynx inspect profile.json` shows: layer classes, the largest kept tensors, collectives per layer."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from lynx_plan.analyze.classes import layer_classes
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.programs import expand
from lynx_plan.model.graph import CostGraph, Layer, Phase, Role
from lynx_plan.model.plan import Outcome, Plan
from lynx_plan.report.collectives import CollectiveRow, collective_rows, collectives_document, collectives_table
from lynx_plan.report.documents import Document, predicted_document
from lynx_plan.report.floor import Floor, floor_document, floor_of, floor_table
from lynx_plan.report.holders import KeptTensor, holders_document, holders_table, largest_kept
from lynx_plan.report.names import kind_name, layer_range, mesh_text, model_text
from lynx_plan.report.policies import kept_instances
from lynx_plan.report.style import make_table, titled
from lynx_plan.report.summary import profile_summary
from lynx_plan.units import format_bytes, format_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """A layer class: its members, and what one of them costs."""

    name: str
    layers: tuple[int, ...]
    ops: int
    forward_ns: int
    backward_ns: int
    comm_ns: int
    collectives: tuple[str, ...]
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """A profile and what a step without recomputation (`none`) costs."""

    graph: CostGraph
    none: Outcome
    classes: tuple[ClassRow, ...]
    largest: tuple[KeptTensor, ...]
    collectives: tuple[CollectiveRow, ...]
    floor: Floor


def inspect_profile(graph: CostGraph, none: Plan) -> ProfileView:
    """Gather the facts of a profile; `none` is its plan without recomputation."""
    index = GraphIndex(graph)
    items = expand(none.stages[0].program, graph.layers)
    flow = resolve(graph, items)
    kept = [s for s in kept_instances(graph, items, flow) if index.storage_op[s] >= 0]
    by_layer = [0] * len(graph.layers)
    for storage in kept:
        by_layer[index.op_layer[index.storage_op[storage]]] += graph.storages[storage].bytes
    rows = [
        _class_row(graph, known.name, known.layers, by_layer[known.layers[0]])
        for known in layer_classes(index, priced=False)
    ]
    return ProfileView(
        graph=graph,
        none=none.predicted,
        classes=tuple(rows),
        largest=largest_kept(index, kept),
        collectives=collective_rows(index, items, flow),
        floor=floor_of(index, kept),
    )


def render_profile(view: ProfileView) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [profile_summary(view.graph, view.none), *details(view)]
    if view.graph.notes:
        parts.append(Text(""))
    for note in view.graph.notes:
        parts.append(Text(f"note: {note}"))
    return Group(*parts)


def details(view: ProfileView) -> list[RenderableType]:
    """What stands under the summary."""
    tables = [_classes_table(view), holders_table(view.largest)]
    if view.collectives:
        tables.append(collectives_table(view.collectives, view.none.step_ns))
    tables.append(floor_table(view.floor))
    return [part for table in tables for part in (Text(""), table)]


def profile_document(view: ProfileView) -> Document:
    """What `lynx inspect profile.json --json` prints."""
    graph = view.graph
    return {
        "kind": graph.kind,
        "model": model_text(graph.model),
        "mesh": dict(graph.mesh),
        "parallelism": mesh_text(graph.mesh),
        "machine": graph.machine.name,
        "ops": len(graph.ops),
        "static_bytes": graph.static.total_bytes,
        "none": predicted_document(view.none),
        "classes": [
            {
                "class": row.name,
                "layers": [graph.layers[layer].name for layer in row.layers],
                "ops": row.ops,
                "forward_ns": row.forward_ns,
                "backward_ns": row.backward_ns,
                "comm_ns": row.comm_ns,
                "collectives": list(row.collectives),
                "kept_bytes_per_layer": row.kept_bytes,
            }
            for row in view.classes
        ],
        "largest": holders_document(view.largest),
        "collectives": collectives_document(view.collectives),
        "floor": floor_document(view.floor),
        "notes": list(graph.notes),
    }


def _class_row(graph: CostGraph, name: str, layers: tuple[int, ...], kept_bytes: int) -> ClassRow:
    layer = graph.layers[layers[0]]
    ops = [graph.ops[op] for op in layer.ops]
    return ClassRow(
        name=name,
        layers=layers,
        ops=len(ops),
        forward_ns=sum(op.time_ns for op in ops if op.phase == Phase.FORWARD),
        backward_ns=sum(op.time_ns for op in ops if op.phase != Phase.FORWARD),
        comm_ns=sum(op.comm_ns for op in ops),
        collectives=_collectives(graph, layer),
        kept_bytes=kept_bytes,
    )


def _collectives(graph: CostGraph, layer: Layer) -> tuple[str, ...]:
    """`2 all_reduce 8.00 MiB (tp, backward)`, one text per kind, size, group and pass."""
    counts: dict[tuple[str, int, str, str], int] = {}
    for op in (graph.ops[id] for id in layer.ops):
        if op.role == Role.COLLECTIVE:
            direction = "forward" if op.phase == Phase.FORWARD else "backward"
            key = (kind_name(op.kind), op.comm_bytes, op.group, direction)
            counts[key] = counts.get(key, 0) + 1
    return tuple(
        f"{count} {kind} {format_bytes(size)} ({group}, {direction})"
        for (kind, size, group, direction), count in counts.items()
    )


def _classes_table(view: ProfileView) -> RenderableType:
    table = make_table()
    table.add_column("layers", no_wrap=True)
    for heading in ("ops", "forward", "backward", "communication", "kept by none"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("collectives", overflow="fold")
    for row in view.classes:
        table.add_row(
            layer_range([view.graph.layers[layer] for layer in row.layers]),
            str(row.ops),
            format_ms(row.forward_ns),
            format_ms(row.backward_ns),
            format_ms(row.comm_ns),
            format_bytes(row.kept_bytes),
            "\n".join(row.collectives) or "-",
        )
    return titled("layer classes (costs of one layer)", table)
