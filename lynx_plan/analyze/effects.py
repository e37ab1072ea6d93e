"""What keeps microbatches from overlapping: state that one of them writes and another might read too early."""

from __future__ import annotations

from lynx_plan.model.graph import CostGraph


def updated_buffers(graph: CostGraph) -> tuple[int, ...]:
    """The ops that write a buffer, such as BatchNorm's running statistics."""
    return tuple(op.id for op in graph.ops if op.kind == "lynx.update_buffer")
