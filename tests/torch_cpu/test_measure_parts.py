"""The parts of measuring: calls as data, operands, reuse distances, the allocator."""

from __future__ import annotations

import json
import platform

import pytest
import torch
from torch import fx

from lynx_plan.errors import LynxError
from lynx_plan.model.graph import Phase, Role, StorageKind
from lynx_plan.torch_rt import measure_call, measure_collective, measure_op
from lynx_plan.torch_rt.allocator import steady_allocator
from lynx_plan.torch_rt.measure_items import op_items
from lynx_plan.torch_rt.measure_reuse import COLD_BYTES, HOT_BYTES, reuse_distances, rounded
from lynx_plan.torch_rt.operands import SPAN_BYTES, OperandPool
from tests.torch_cpu.gpt_case import capture_gpt
from tests.unit.builders import GraphBuilder

MIB = 2**20


def test_every_call_of_a_gpt_is_made_again_with_the_same_shapes() -> None:
    captured = capture_gpt(0, layers=1)
    items, indices = op_items(captured)
    pool = OperandPool()
    for op, index in zip(captured.graph.ops, indices, strict=True):
        if index < 0 or items[index]["what"] != "op":
            continue
        call = json.loads(json.dumps(items[index]["call"]))
        args, kwargs = measure_op.operand_sets(call, pool, {})[0][:2]
        result = measure_call.resolve(call["target"])(*args, **kwargs)
        results = result if isinstance(result, (list, tuple)) else [result]
        made = [(tuple(r.shape), r.stride(), str(r.dtype)) for r in results if isinstance(r, torch.Tensor)]
        tensors = [captured.graph.tensors[t] for t in op.outputs]
        assert made == [(t.shape, t.stride, f"torch.{t.dtype}") for t in tensors], op.name


def test_a_call_that_is_no_op_is_named() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(len, (x,))
    with pytest.raises(LynxError, match="'len_1'"):
        measure_call.node_call(node, lambda _: 0)


@pytest.mark.parametrize(
    ("shape", "stride", "dtype"),
    [
        ((3, 4), (4, 1), "float32"),
        ((4, 3), (1, 4), "bfloat16"),
        ((5, 7), (0, 1), "float32"),
        ((2, 3), (100, 1), "float32"),
        ((0, 3), (3, 1), "float32"),
        ((), (), "float64"),
        ((6,), (1,), "int64"),
        ((6,), (1,), "bool"),
        ((6,), (1,), "complex64"),
    ],
)
def test_operands_have_shape_stride_and_dtype(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str) -> None:
    tensor = OperandPool().tensor(measure_call.tensor_data(shape, stride, dtype), limit=5)
    assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (shape, stride, getattr(torch, dtype))
    if dtype == "int64":
        assert 0 <= int(tensor.min()) <= int(tensor.max()) < 5


def test_successive_operands_do_not_overlap() -> None:
    pool, data = OperandPool(), measure_call.tensor_data((1000,), (1,), "float32")
    first, second = pool.tensor(data), pool.tensor(data)
    assert second.data_ptr() - first.data_ptr() >= 4000
    assert (second.data_ptr() - first.data_ptr()) % 64 == 0


def test_an_operand_larger_than_the_pool_gets_a_larger_one() -> None:
    tensor = OperandPool().tensor(measure_call.tensor_data((SPAN_BYTES // 4 + 5,), (1,), "float32"))
    assert tensor.numel() == SPAN_BYTES // 4 + 5
    assert 0.05 < float(tensor.min()) <= float(tensor.max()) <= 1


@pytest.mark.parametrize(("cores", "part"), [(1, 1.0), (2, 1.0), (3, 0.5), (4, 0.0), (16, 0.0)])
def test_a_collectives_threads_steal_only_from_cores_they_share(
    monkeypatch: pytest.MonkeyPatch, cores: int, part: float
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(measure_collective.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(measure_collective.dist, "get_world_size", lambda: 2)
    assert measure_collective._shared_part() == part


def test_identical_layers_are_measured_as_one() -> None:
    captured = capture_gpt(2, layers=4, sequence=128, hidden=64)  # large enough that the ends' operands are warmer
    _, indices = op_items(captured)
    blocks = [layer for layer in captured.graph.layers if layer.name.startswith("layers.")]
    assert len(blocks) == 4
    assert len({tuple(indices[op] for op in block.ops) for block in blocks}) == 1


def test_distances_are_rounded_up() -> None:
    assert [rounded(count) for count in (0, HOT_BYTES, HOT_BYTES + 1)] == [HOT_BYTES, HOT_BYTES, COLD_BYTES]


def test_reuse_distances_follow_the_order_and_go_round() -> None:
    builder = GraphBuilder()
    builder.layer("only")
    weight = builder.source("w", 8, StorageKind.PARAMETER)
    (a,) = builder.op("first", (weight,), (8,), bytes=3 * MIB)
    view = builder.view("seen", a, 8)
    (b,) = builder.op("second", (view,), (8,), bytes=30 * MIB)
    builder.op("third", (b, a, weight), (8,), bytes=5 * MIB)
    first, _, second, third = reuse_distances(builder.build())
    assert first == (COLD_BYTES,)  # touched last by `third`, which moved 5 MiB, a step ago
    assert second == (HOT_BYTES,)  # made by `first`, which moved 3 MiB; the view moved nothing
    assert third == (COLD_BYTES, COLD_BYTES, COLD_BYTES)  # w: touched by `first`, 33 MiB ago


def test_a_weights_accumulation_is_a_copy_into_its_gradient() -> None:
    captured = capture_gpt(0, layers=1)
    items, indices = op_items(captured)
    for op, index in zip(captured.graph.ops, indices, strict=True):
        if op.role is Role.ACCUMULATE:
            item = items[index]
            assert op.phase is Phase.WEIGHT_GRADIENT
            assert item["what"] == "accumulate"
            assert item["main"]["shape"] == item["new"]["shape"]
            assert torch.empty_strided(item["main"]["shape"], item["main"]["stride"]).is_contiguous()


def test_the_allocator_is_steady_where_the_c_library_is_glibc() -> None:
    assert steady_allocator() is (platform.libc_ver()[0] == "glibc")
