"""Waves of tiles and the writes after them, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lynx_plan.cost.matmul import Shape, multiply_ns, shape_of, waves
from lynx_plan.cost.roofline import price
from lynx_plan.model.graph import (
    CostGraph,
    Layer,
    ModelSpec,
    Op,
    Phase,
    Role,
    StaticMemory,
    Storage,
    StorageKind,
    Tensor,
)
from lynx_plan.model.machine import Efficiency, Link, Machine, Peak

# ten processors with tiles of 4 x 2; 1000 flops/ns, 100 bytes/ns
MACHINE = Machine(
    name="tiled",
    device="cuda",
    memory_bytes=1 << 30,
    margin_bytes=0,
    peaks=(Peak(dtype="bfloat16", flops_per_s=10**12, source="made up"),),
    memory_bytes_per_s=10**11,
    launch_ns=1,
    matmul_tile=(4, 2),
    processors=10,
    link=Link(bytes_per_s=1, latency_ns=0),
)


def shape(rows: int, columns: int, inner: int = 1000, batch: int = 1) -> Shape:
    return Shape(batch=batch, rows=rows, columns=columns, inner=inner)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (shape(40, 2), 1),  # exactly one wave
        (shape(44, 2), 2),  # one tile more
        (shape(40, 4), 2),
        (shape(2, 44), 2),  # the tile lies across
        (shape(4, 2, batch=10), 1),
        (shape(5, 2, batch=10), 2),  # half of each second tile is idle; across, a third tile would be needed
        (shape(20, 2), 0.5),  # less than a wave: as it is
        (shape(1, 1), 1 / 80),
    ],
)
def test_waves_are_whole_from_one_on(what: Shape, expected: float) -> None:
    assert waves(what, MACHINE) == expected


def matmul(batch: int, rows: int, columns: int, inner: int, kind: str = "aten.bmm") -> CostGraph:
    shapes = ((batch, rows, inner), (batch, inner, columns), (batch, rows, columns))
    sizes = [2 * a * b * c for a, b, c in shapes]
    op = Op(
        id=0,
        name="bmm",
        kind=kind,
        role=Role.COMPUTE,
        phase=Phase.FORWARD,
        inputs=(0, 1),
        outputs=(2,),
        flops=2 * batch * rows * columns * inner,
        bytes=sum(sizes),
    )
    kinds = (StorageKind.INPUT, StorageKind.INPUT, StorageKind.ACTIVATION)
    return CostGraph(
        model=ModelSpec(path="made.py"),
        mesh=(),
        machine=MACHINE,
        static=StaticMemory(parameters_bytes=0, buffers_bytes=0, gradients_bytes=0, optimizer_bytes=0, inputs_bytes=0),
        ops=(op,),
        tensors=tuple(
            Tensor(
                id=i, name=f"t{i}", storage=i, producer=0 if i == 2 else -1, dtype="bfloat16", shape=s, stride=(1, 1, 1)
            )
            for i, s in enumerate(shapes)
        ),
        storages=tuple(Storage(id=i, bytes=size, kind=k) for i, (size, k) in enumerate(zip(sizes, kinds, strict=True))),
        layers=(Layer(id=0, name="only", ops=(0,)),),
        outputs=(2,),
    )


def time_of(graph: CostGraph, machine: Machine = MACHINE) -> int:
    return price(graph, machine, None).ops[0].time_ns


def test_the_shape_of_an_op_comes_from_its_result_and_flops() -> None:
    graph = matmul(3, 40, 20, 1000)
    assert shape_of(graph.ops[0], graph) == shape(40, 20, batch=3)
    other = matmul(3, 40, 20, 1000, kind="aten.convolution")
    assert shape_of(other.ops[0], other) is None


def test_multiplies_take_their_waves_at_the_efficiency_of_their_size() -> None:
    graph = matmul(1, 44, 2, 1000)
    slow = replace(MACHINE, matmul_efficiency=(Efficiency(size=1, share=0.5),))
    whole = 2 * 10 * 4 * 2 * 2 * 1000 / 1000  # waves, processors, tile, multiply and add, inner, flops per ns
    assert multiply_ns(graph.ops[0], shape(44, 2), MACHINE, 10**12) == whole
    assert multiply_ns(graph.ops[0], shape(44, 2), slow, 10**12) == 2 * whole


def test_the_result_is_written_after_the_multiplies_and_reads_overlap_them() -> None:
    assert time_of(matmul(1, 40, 20, 1000)) == 1600 + 16  # ten waves; 1600 bytes written
    assert time_of(matmul(1, 40, 20, 1)) == 2 + 16  # 120 bytes read in 1.2 ns, 1.6 of multiplies
    assert time_of(matmul(1, 4, 2, 10_000)) == 1200 + 0  # reads 120 kB: slower than its multiplies


def test_without_processors_waves_are_not_counted() -> None:
    plain = replace(MACHINE, processors=0)
    assert time_of(matmul(1, 44, 2, 1000), plain) == 922  # 92176 bytes; the multiplies take 176
