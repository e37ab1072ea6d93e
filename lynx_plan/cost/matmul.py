"""What a matmul costs on a processor array: tiles of the result dealt out in waves, then written.

Tiles: every processor computes one tile of the result at a time, and a wave lasts as long for one tile as for a
full row of them (NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantization). Writes: a
processor writes a tile after its last multiply and holds no other tile meanwhile, so the result's bytes come on
top; with a short inner dimension, as in attention scores, they cost as much as the multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from lynx_plan.cost.efficiency import share_at
from lynx_plan.model.graph import CostGraph, Op
from lynx_plan.model.machine import Machine

KINDS = frozenset(("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`batch` products of [rows, inner] by [inner, columns]."""

    batch: int
    rows: int
    columns: int
    inner: int


def shape_of(op: Op, graph: CostGraph) -> Shape | None:
    """The shape of a matmul op; None for any other op, or for an empty one."""
    if op.kind not in KINDS or not op.flops:
        return None
    *batch, rows, columns = graph.tensors[op.outputs[0]].shape
    count = prod(batch)
    return Shape(batch=count, rows=rows, columns=columns, inner=op.flops // (2 * count * rows * columns))


def waves(shape: Shape, machine: Machine) -> float:
    """How often the array runs over the result, in tiles per processor: whole from one full wave on.

    The tile lies along or across the result, whichever needs less. Less than one wave is left as the fraction it is:
    there a library takes smaller tiles, and measured efficiencies of small matmuls tell what that costs.
    """
    high, wide = machine.matmul_tile
    tiles = min(_tiles(shape, high, wide), _tiles(shape, wide, high))
    if tiles < machine.processors:
        return shape.batch * shape.rows * shape.columns / (high * wide * machine.processors)
    return ceil(tiles / machine.processors)


def multiply_ns(op: Op, shape: Shape, machine: Machine, peak: int) -> float:
    """Nanoseconds of the multiplies alone, at `peak` FLOP/s times the machine's efficiency for this size."""
    high, wide = machine.matmul_tile
    done = waves(shape, machine) * machine.processors * 2 * high * wide * shape.inner
    return done * 10**9 / (peak * share_at(machine.matmul_efficiency, op.flops))


def _tiles(shape: Shape, high: int, wide: int) -> int:
    return shape.batch * ceil(shape.rows / high) * ceil(shape.columns / wide)
