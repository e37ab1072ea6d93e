"""What is fused, what a fused kernel moves, and how its time is shared; on graphs small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lynx_plan.cost.backends import BACKENDS, with_backend
from lynx_plan.cost.fusion import fused_ops, outer_bytes, storage_readers
from lynx_plan.cost.roofline import FUSED, price
from lynx_plan.errors import LynxError
from lynx_plan.model.graph import CostGraph, Phase, StorageKind
from lynx_plan.model.machine import FusionGroup, KernelRate, Link, Machine, OptimizerPass, Peak
from tests.unit.builders import GraphBuilder

# 100 bytes/ns
MACHINE = Machine(
    name="round",
    device="cuda",
    memory_bytes=1 << 30,
    margin_bytes=0,
    peaks=(Peak(dtype="float32", flops_per_s=10**12, source="made up"),),
    memory_bytes_per_s=10**11,
    launch_ns=1,
    link=Link(bytes_per_s=10**10, latency_ns=0),
)
GELU = FusionGroup(name="gelu", kinds=("aten.add.Tensor", "aten.gelu"), source="made up")
BYTES = 100_000


def chain() -> CostGraph:
    """Twice add, gelu, with a matmul between; backward reads the second gelu's input."""
    b = GraphBuilder()
    x = b.source("x", BYTES, StorageKind.INPUT)
    b.layer("layers.0")
    (a,) = b.op("add1", (x,), (BYTES,), kind="aten.add.Tensor", bytes=2 * BYTES)
    (g,) = b.op("gelu1", (a,), (BYTES,), kind="aten.gelu", bytes=2 * BYTES)
    (m,) = b.op("mm", (g,), (BYTES,), kind="aten.mm", bytes=2 * BYTES)
    (c,) = b.op("add2", (m, a), (BYTES,), kind="aten.add.Tensor", bytes=3 * BYTES)
    (h,) = b.op("gelu2", (c,), (BYTES,), kind="aten.gelu", bytes=2 * BYTES)
    b.op("back", (h, c), (BYTES,), kind="aten.gelu", phase=Phase.BACKWARD, bytes=3 * BYTES)
    return b.build(outputs=(h,))


def names(graph: CostGraph, groups: tuple[FusionGroup, ...]) -> list[list[str]]:
    return [[graph.ops[op].name for op in fused.ops] for fused in fused_ops(graph, groups)]


def test_neighbours_are_fused_but_not_around_a_matmul_nor_across_the_passes() -> None:
    assert names(chain(), (GELU,)) == [["add1", "gelu1"], ["add2", "gelu2"]]


def test_nothing_is_fused_in_eager_execution_and_singles_never() -> None:
    assert fused_ops(chain(), ()) == ()
    assert names(chain(), (replace(GELU, kinds=("aten.gelu",)),)) == []


def test_an_op_of_several_groups_goes_where_it_finds_neighbours() -> None:
    b = GraphBuilder()
    x = b.source("x", BYTES, StorageKind.INPUT)
    b.layer("layers.0")
    (a,) = b.op("bias", (x,), (BYTES,), kind="aten.add.Tensor")
    (d,) = b.op("dropout", (a,), (BYTES,), kind="aten.native_dropout")
    (y,) = b.op("residual", (x, d), (BYTES,), kind="aten.add.Tensor")
    (small,) = b.op("reduced", (y,), (4,), kind="aten.add.Tensor")
    groups = (GELU, FusionGroup(name="drop", kinds=("aten.add.Tensor", "aten.native_dropout"), source="made up"))
    assert names(b.build(outputs=(y, small)), groups) == [["bias", "dropout", "residual"]]


def test_outer_traffic_leaves_out_what_only_members_read() -> None:
    graph = chain()
    first, second = fused_ops(graph, (GELU,))
    readers = storage_readers(graph)
    assert outer_bytes(graph, first, readers) == (BYTES, 2 * BYTES)  # add2 reads add1's result
    assert outer_bytes(graph, second, readers) == (2 * BYTES, 2 * BYTES)  # backward reads add2's
    half = replace(second, group=replace(GELU, read_share=0.5))
    assert outer_bytes(graph, half, readers) == (BYTES, 2 * BYTES)


def test_a_fused_kernels_time_is_shared_by_what_each_op_took_alone() -> None:
    graph = price(chain(), replace(MACHINE, fusion=(GELU,)), None)
    alone = price(chain(), MACHINE, None)
    times = {op.name: (op.time_ns, op.cost_source) for op in graph.ops}
    assert [op.time_ns for op in alone.ops[3:5]] == [3000, 2000]
    assert times["add2"] == (2400, "roofline:round:fused:gelu")  # 4 of 5 parts of the traffic
    assert times["gelu2"] == (1600, "roofline:round:fused:gelu")
    assert times["mm"][1] == times["back"][1] == "roofline:round"
    assert graph.notes == price(graph, graph.machine, None).notes == (FUSED,)
    assert price(graph, MACHINE, None).notes == alone.notes == ()


def test_the_slowest_kind_of_a_kernel_sets_its_rate() -> None:
    slow = KernelRate(kind="aten.gelu", share=0.5, source="made up")
    graph = price(chain(), replace(MACHINE, kernels=(slow,), fusion=(GELU,)), None)
    assert sum(op.time_ns for op in graph.ops[3:5]) == 8000
    alone = price(chain(), replace(MACHINE, kernels=(slow,)), None)
    assert [op.time_ns for op in alone.ops[3:5]] == [3000, 4000]


def accumulated() -> CostGraph:
    b = GraphBuilder()
    x = b.source("x", 4000, StorageKind.INPUT)
    w = b.source("w", 4000, StorageKind.PARAMETER)
    b.layer("layers.0")
    (y,) = b.op("mm", (x, w), (4000,), kind="aten.mm")
    (g,) = b.op("wgrad", (y, x), (4000,), kind="aten.mm", phase=Phase.WEIGHT_GRADIENT)
    b.accumulate("w", g)
    return b.build(outputs=(y,))


def test_accumulation_in_the_matmul_reads_and_writes_the_main_gradient_once() -> None:
    graph = accumulated()
    group = FusionGroup(name="acc", kinds=("aten.mm", "lynx.accumulate"), source="made up")
    (fused,) = fused_ops(graph, (group,))
    assert [graph.ops[op].kind for op in fused.ops] == ["aten.mm", "lynx.accumulate"]
    elements = graph.tensors[graph.ops[fused.ops[1]].inputs[0]].shape[0]
    written = outer_bytes(graph, fused, storage_readers(graph))[1]
    assert written == 2 * 4000
    wider = replace(fused, group=replace(group, main_gradient_bytes=8))
    assert outer_bytes(graph, wider, storage_readers(graph))[1] == 2 * 8 * elements


def test_optimizer_passes_count_the_trained_parameters() -> None:
    passes = tuple(OptimizerPass(name=n, bytes_per_parameter=b, source="made up") for n, b in (("a", 100), ("b", 300)))
    graph = price(accumulated(), replace(MACHINE, optimizer_passes=passes), None)
    elements = accumulated().tensors[accumulated().ops[-1].inputs[0]].shape[0]
    assert graph.optimizer_ns == elements * 4


def test_backends_have_sources_and_unknown_ones_are_refused() -> None:
    fast = with_backend(MACHINE, "megatron")
    assert fast.fusion
    assert all(group.source for group in fast.fusion)
    assert all(part.source for part in fast.optimizer_passes)
    assert with_backend(fast, "none") == MACHINE
    with pytest.raises(LynxError, match="no fusion 'warp'") as caught:
        with_backend(MACHINE, "warp")
    assert all(name in caught.value.hint for name in BACKENDS)
