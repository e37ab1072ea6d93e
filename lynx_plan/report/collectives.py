"""Every collective of a profile: why it exists, what it takes, and how much of it is exposed without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from lynx_plan.analyze.flow import Flow
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.analyze.reasons import reason
from lynx_plan.model.graph import CostGraph, Op, Phase, Role
from lynx_plan.model.program import Item
from lynx_plan.model.timeline import Stream
from lynx_plan.report.documents import Document
from lynx_plan.report.names import kind_name
from lynx_plan.report.style import make_table, titled
from lynx_plan.simulate.streams import item_times, simulate
from lynx_plan.units import format_bytes, format_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Collectives that exist for the same reason. Bytes and `each_ns` are of one, the other times of all."""

    reason: str
    kind: str
    group: str
    direction: str
    bytes: int
    count: int
    each_ns: int
    exposed_ns: int


def collective_rows(index: GraphIndex, items: Sequence[Item], flow: Flow) -> tuple[CollectiveRow, ...]:
    """Rows in the order in which a step runs the first of each; exposed: time blocked in their waits, in this order."""
    graph = index.graph
    exposed = _blocked(graph, items, flow)
    groups: dict[tuple[object, ...], list[Op]] = {}
    for op in graph.ops:
        if op.role is Role.COLLECTIVE:
            groups.setdefault(
                (reason(index, op), op.kind, op.group, op.comm_bytes, op.phase is Phase.FORWARD), []
            ).append(op)
    return tuple(
        CollectiveRow(
            reason=str(why),
            kind=kind_name(ops[0].kind),
            group=f"{ops[0].group} {ops[0].group_size}",
            direction="forward" if forward else "backward",
            bytes=ops[0].comm_bytes,
            count=len(ops),
            each_ns=sum(op.comm_ns for op in ops) // len(ops),
            exposed_ns=sum(exposed.get(op.id, 0) for op in ops),
        )
        for (why, _, _, _, forward), ops in groups.items()
    )


def _blocked(graph: CostGraph, items: Sequence[Item], flow: Flow) -> dict[int, int]:
    """Collective's op -> time blocked in its wait."""
    timeline = simulate(graph, items, flow, item_times(graph, items))
    found: dict[int, int] = {}
    for event in timeline.events:
        op = graph.ops[event.item.op]
        if event.stream is Stream.COMPUTE and op.role is Role.WAIT:
            launched = graph.tensors[op.inputs[0]].producer
            found[launched] = found.get(launched, 0) + event.end_ns - event.start_ns
    return found


def collectives_table(rows: Sequence[CollectiveRow], step_ns: int) -> RenderableType:
    """The rows, and how much communication a step without a plan waits for."""
    table = make_table()
    table.add_column("why", overflow="fold")
    for heading in ("kind", "group", "pass"):
        table.add_column(heading, no_wrap=True)
    for heading in ("bytes", "count", "each", "exposed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = (row.reason, row.kind, row.group, row.direction, format_bytes(row.bytes), str(row.count))
        table.add_row(*cells, format_ms(row.each_ns), format_ms(row.exposed_ns))
    total, exposed = sum(row.each_ns * row.count for row in rows), sum(row.exposed_ns for row in rows)
    share = f"{100 * exposed / step_ns:.0f} % of the step" if step_ns else "nothing"
    caption = f"exposed if nothing is recomputed: {format_ms(exposed)} of {format_ms(total)}, {share}"
    return titled("collectives of one microbatch", table, caption)


def collectives_document(rows: Sequence[CollectiveRow]) -> list[Document]:
    """For `--json`."""
    return [
        {
            "reason": row.reason,
            "kind": row.kind,
            "group": row.group,
            "pass": row.direction,
            "bytes": row.bytes,
            "count": row.count,
            "each_ns": row.each_ns,
            "exposed_ns": row.exposed_ns,
        }
        for row in rows
    ]
