"""What `lynx inspect profile.json` shows: layer classes, the largest kept tensors, collectives per layer."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from lynx_plan.analyze.classes import layer_classes
from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import CostGraph, Layer, Phase, Role
from lynx_plan.model.plan import Outcome
from lynx_plan.model.program import Item
from lynx_plan.report.documents import Document, predicted_document
from lynx_plan.report.names import kind_name, layer_range, mesh_text, model_text, op_name
from lynx_plan.report.policies import kept_instances
from lynx_plan.report.style import make_table, titled
from lynx_plan.report.summary import profile_summary
from lynx_plan.units import format_bytes, format_ms

LARGEST = 10


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
class KeptTensor:
    """A storage that `none` keeps for backward: the op that made it, and its bytes. Alike ones are counted."""

    name: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """A profile and what a step without recomputation (`none`) costs."""

    graph: CostGraph
    none: Outcome
    classes: tuple[ClassRow, ...]
    largest: tuple[KeptTensor, ...]


def inspect_profile(graph: CostGraph, none: Outcome) -> ProfileView:
    """Gather the facts of a profile."""
    index = GraphIndex(graph)
    items = [Item(op.id) for op in graph.ops]
    kept = [s for s in kept_instances(graph, items, resolve(graph, items)) if index.storage_op[s] >= 0]
    by_layer = [0] * len(graph.layers)
    for storage in kept:
        by_layer[index.op_layer[index.storage_op[storage]]] += graph.storages[storage].bytes
    rows = [
        _class_row(graph, known.name, known.layers, by_layer[known.layers[0]])
        for known in layer_classes(index, priced=False)
    ]
    return ProfileView(graph=graph, none=none, classes=tuple(rows), largest=_largest(index, kept))


def render_profile(view: ProfileView) -> RenderableType:
    """The whole view."""
    blank = Text("")
    parts: list[RenderableType] = [
        profile_summary(view.graph, view.none), blank, _classes_table(view), blank, _largest_table(view)
    ]  # fmt: skip
    for note in view.graph.notes:
        parts.append(Text(f"note: {note}"))
    return Group(*parts)


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
        "largest": [{"op": kept.name, "bytes": kept.bytes, "count": kept.count} for kept in view.largest],
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


def _largest(index: GraphIndex, kept: list[int]) -> tuple[KeptTensor, ...]:
    counts: dict[tuple[str, int], int] = {}
    for storage in kept:
        op = index.graph.ops[index.storage_op[storage]]
        layer = index.graph.layers[index.op_layer[op.id]]
        key = (
            f"{op_name(op, layer)} of {layer.name.rstrip('0123456789').rstrip('.')}",
            index.graph.storages[storage].bytes,
        )
        counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[0][1] * pair[1], pair[0]))
    return tuple(KeptTensor(name=name, bytes=size, count=count) for (name, size), count in ordered[:LARGEST])


def _classes_table(view: ProfileView) -> RenderableType:
    table = make_table()
    table.add_column("layers", no_wrap=True)
    for heading in ("ops", "forward", "backward", "communication", "kept by none"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("collectives")
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


def _largest_table(view: ProfileView) -> RenderableType:
    table = make_table()
    table.add_column("made by", no_wrap=True)
    for heading in ("bytes", "count", "together"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kept in view.largest:
        table.add_row(kept.name, format_bytes(kept.bytes), str(kept.count), format_bytes(kept.bytes * kept.count))
    return titled("largest tensors kept by none", table)
