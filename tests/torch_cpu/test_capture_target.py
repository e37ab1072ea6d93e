"""Tracing for a GPU on the CPU: the attention backend's op and its saved tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lynx_plan.errors import LynxError
from lynx_plan.files import digest
from tests.torch_cpu.gpt_case import CPU, SMALL, capture_gpt

GPU = replace(CPU, name="test-gpu", device="cuda", attention_backend="flash")


def attention(machine, **arguments):
    """Names of the attention nodes' targets, and (dtype, shape) of what attention makes."""
    captured = capture_gpt(2, machine, layers=1, **arguments)
    graph = captured.graph
    ops = [op for op in graph.ops if "attention" in op.kind]
    targets = {str(captured.nodes[op.id].target).split(".")[1] for op in ops}
    made = [(graph.tensors[t].dtype, graph.tensors[t].shape) for t in ops[0].outputs]
    return {op.kind for op in ops}, targets, made


@pytest.mark.parametrize(
    ("backend", "dtype", "target"),
    [
        ("flash", "bfloat16", "_scaled_dot_product_flash_attention"),
        ("flash", "float32", "_scaled_dot_product_efficient_attention"),
        ("efficient", "bfloat16", "_scaled_dot_product_efficient_attention"),
        ("cudnn", "bfloat16", "_scaled_dot_product_cudnn_attention"),
    ],
)
def test_attention_is_the_machines(backend, dtype, target):
    kinds, targets, made = attention(replace(GPU, attention_backend=backend), dtype=dtype)
    assert kinds == {"attention", "attention_backward"}
    assert targets == {target, f"{target}_backward"}
    heads, sequence, batch = SMALL["heads"] // 2, SMALL["sequence"], SMALL["micro_batch"]
    padded = 32 if "efficient" in target else sequence
    last = (1,) if "cudnn" in target else ()
    assert made[0] == (dtype, (batch, heads, sequence, SMALL["hidden"] // SMALL["heads"]))
    assert made[1] == ("float32", (batch, heads, padded, *last))


def test_a_gpu_keeps_norm_statistics_in_full_precision():
    def statistics(machine):
        graph = capture_gpt(2, machine, layers=1, dtype="bfloat16").graph
        norm = next(op for op in graph.ops if op.kind == "aten.native_layer_norm")
        tensors = [graph.tensors[t] for t in norm.outputs]
        return [(tensor.dtype, graph.storages[tensor.storage].bytes) for tensor in tensors[1:]]

    tokens = SMALL["sequence"] * SMALL["micro_batch"]
    assert statistics(GPU) == [("float32", 4 * tokens)] * 2
    assert statistics(CPU) == [("bfloat16", 2 * tokens)] * 2


def test_math_attention_has_its_parts():
    graph = capture_gpt(2, replace(GPU, attention_backend="math"), layers=1).graph
    kinds = {op.kind for op in graph.ops}
    assert "attention" not in kinds
    assert "aten.bmm" in kinds


@pytest.mark.filterwarnings("error::UserWarning")
def test_each_capture_has_its_own_device():
    before = digest(capture_gpt(0, layers=1).graph)
    query = torch.randn(1, 2, 4, 8)
    wanted = F.scaled_dot_product_attention(query, query, query)
    assert attention(GPU)[1] == {f"_scaled_dot_product_efficient_attention{end}" for end in ("", "_backward")}
    assert digest(capture_gpt(0, layers=1).graph) == before
    assert torch.equal(F.scaled_dot_product_attention(query, query, query), wanted)


def test_a_backend_that_cannot_take_the_dtype_is_named():
    with pytest.raises(LynxError, match="'cudnn' does not take float32"):
        capture_gpt(2, replace(GPU, attention_backend="cudnn"))
    with pytest.raises(LynxError, match="attention backend 'cpu'"):
        capture_gpt(2, replace(GPU, attention_backend="cpu"))
    assert "attention" in {op.kind for op in capture_gpt(0, layers=1).graph.ops}
