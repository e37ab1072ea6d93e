"""The largest tensors that are kept for the backward pass: who made them, and who needs them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.reasons import place
from lynx_plan.model.graph import Op, Phase, Role
from lynx_plan.report.documents import Document
from lynx_plan.report.names import kind_name
from lynx_plan.report.style import make_table, titled
from lynx_plan.units import format_bytes

LARGEST = 12
_SHOWN = 3  # kinds of backward ops


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """Storages that `none` keeps, alike: the op that made them, its line, what backward does with them."""

    name: str
    source: str
    needed_by: tuple[str, ...]
    bytes: int  # of one
    count: int


def largest_kept(index: GraphIndex, kept: Sequence[int]) -> tuple[KeptTensor, ...]:
    """The kept storages by the bytes that all alike ones take together, most first."""
    counts: dict[tuple[str, str, tuple[str, ...], int], int] = {}
    for storage in kept:
        op = index.graph.ops[index.storage_op[storage]]
        key = (_name(index, op), op.source, _needed_by(index, storage), index.graph.storages[storage].bytes)
        counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[0][-1] * pair[1], pair[0]))
    return tuple(
        KeptTensor(name=name, source=source, needed_by=needed, bytes=size, count=count)
        for (name, source, needed, size), count in ordered[:LARGEST]
    )


def _name(index: GraphIndex, op: Op) -> str:
    return f"{kind_name(op.kind)} of {place(index, op)}"


def _needed_by(index: GraphIndex, storage: int) -> tuple[str, ...]:
    """Backward ops that read it, views left out, the commonest places first in execution order."""
    readers = {reader for tensor in index.storage_tensors[storage] for reader in index.consumers[tensor]}
    ops = [index.graph.ops[reader] for reader in sorted(readers)]
    found = [op for op in ops if op.phase is not Phase.FORWARD and op.role is not Role.VIEW]
    return tuple(dict.fromkeys(_name(index, op) for op in found))


def holders_table(kept: Sequence[KeptTensor]) -> RenderableType:
    """One line per kind of tensor."""
    table = make_table()
    for heading in ("made by", "needed by"):
        table.add_column(heading, overflow="fold")
    for heading in ("bytes", "count", "together"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in kept:
        made = f"{row.name}\n  {row.source}" if row.source else row.name
        more = len(row.needed_by) - _SHOWN
        needed = [*row.needed_by[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        table.add_row(
            made, "\n".join(needed) or "-", format_bytes(row.bytes), str(row.count), format_bytes(row.bytes * row.count)
        )
    return titled("largest tensors kept by none", table)


def holders_document(kept: Sequence[KeptTensor]) -> list[Document]:
    """For `--json`."""
    return [
        {
            "op": row.name,
            "source": row.source,
            "needed_by": list(row.needed_by),
            "bytes": row.bytes,
            "count": row.count,
        }
        for row in kept
    ]
