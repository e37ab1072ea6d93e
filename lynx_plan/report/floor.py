"""The part of memory that recomputation cannot touch: what is static, what is always kept, one op's own operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.reasons import place
from lynx_plan.model.graph import Op, StorageKind
from lynx_plan.report.documents import Document
from lynx_plan.report.names import kind_name
from lynx_plan.report.style import facts, titled
from lynx_plan.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Bytes that every plan needs: static ones by kind, kept activations, and the largest op's operands."""

    static: tuple[tuple[str, int], ...]
    kept_bytes: int  # made by ops that run only once, and needed in backward
    kept_by: tuple[str, ...]
    largest_bytes: int  # activations that one op reads and writes at once
    largest_op: str

    @property
    def total_bytes(self) -> int:
        """A lower bound: the operands may be among the kept."""
        return sum(size for _, size in self.static) + max(self.kept_bytes, self.largest_bytes)


def floor_of(index: GraphIndex, kept: Sequence[int]) -> Floor:
    """`kept`: the storages that `none` keeps for the backward pass."""
    graph, static = index.graph, index.graph.static
    parts = (
        ("parameters", static.parameters_bytes),
        ("gradients", static.gradients_bytes),
        ("optimizer", static.optimizer_bytes),
        ("buffers", static.buffers_bytes),
        ("inputs", static.inputs_bytes),
        ("workspace", static.workspace_bytes),
    )
    once = [storage for storage in kept if graph.ops[index.storage_op[storage]].effect]
    largest = max(graph.ops, key=lambda op: (_operands(index, op), -op.id), default=None)
    return Floor(
        static=tuple((name, size) for name, size in parts if size),
        kept_bytes=sum(graph.storages[storage].bytes for storage in once),
        kept_by=tuple(dict.fromkeys(_name(index, graph.ops[index.storage_op[storage]]) for storage in once)),
        largest_bytes=_operands(index, largest) if largest else 0,
        largest_op=_name(index, largest) if largest else "",
    )


def _operands(index: GraphIndex, op: Op) -> int:
    graph = index.graph
    storages = {graph.tensors[tensor].storage for tensor in (*op.inputs, *op.outputs)}
    return sum(graph.storages[s].bytes for s in storages if graph.storages[s].kind is StorageKind.ACTIVATION)


def _name(index: GraphIndex, op: Op) -> str:
    return f"{kind_name(op.kind)} of {place(index, op)}"


def floor_table(floor: Floor) -> RenderableType:
    """Labels and bytes."""
    rows = [(name, format_bytes(size)) for name, size in floor.static]
    if floor.kept_bytes:
        rows.append(
            ("always kept", f"{format_bytes(floor.kept_bytes)} ({', '.join(floor.kept_by[:3])}: they run once)")
        )
    if floor.largest_op:
        rows.append(("one op", f"{format_bytes(floor.largest_bytes)} that {floor.largest_op} reads and writes at once"))
    rows.append(("at least", f"{format_bytes(floor.total_bytes)}, whatever is recomputed"))
    table = facts(rows)
    return titled("memory that recomputation cannot touch", table)


def floor_document(floor: Floor) -> Document:
    """For `--json`."""
    return {
        "static": dict(floor.static),
        "kept_bytes": floor.kept_bytes,
        "kept_by": list(floor.kept_by),
        "largest_op": floor.largest_op,
        "largest_op_bytes": floor.largest_bytes,
        "total_bytes": floor.total_bytes,
    }
