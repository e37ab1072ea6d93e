"""What one layer keeps on a GPU, traced on the CPU, against bytes counted by hand: attention, norms, autocast.

s b h: tokens times hidden size; activations of 2 bytes; attention is one flash kernel.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lynx_plan.analyze.flow import resolve
from lynx_plan.analyze.index import GraphIndex
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.report.policies import kept_bytes
from lynx_plan.solve.base import Problem
from lynx_plan.solve.registry import solver
from lynx_plan.torch_rt.capture import capture_file, capture_module
from lynx_plan.torch_rt.fake_step import fake_tensors
from tests.torch_cpu.gpt_case import CPU, SMALL, capture_gpt

GPU = replace(CPU, name="test-gpu", device="cuda", attention_backend="flash")
TOKENS = SMALL["sequence"] * SMALL["micro_batch"]
SBH = TOKENS * SMALL["hidden"]


def capture(model: nn.Module, *args: Tensor, machine=GPU) -> CostGraph:
    spec = ModelSpec(path=__file__)
    return capture_module(model, args, lambda y: y, spec=spec, mesh=None, mesh_shape=(), machine=machine).graph


def kept(graph: CostGraph, layer: str) -> int:
    index = GraphIndex(graph)
    items = solver("none")(Problem(graph=graph, index=index, budget_bytes=10**12)).items
    by_layer = kept_bytes(index, items, resolve(graph, items))
    return next(size for record, size in zip(graph.layers, by_layer, strict=True) if record.name == layer)


def kinds(graph: CostGraph) -> dict[str, str]:
    """Forward op kinds and the dtype of their first result."""
    forward = [op for op in graph.ops if op.phase == "forward" and op.outputs]
    return {op.kind.removeprefix("aten."): graph.tensors[op.outputs[0]].dtype for op in forward}


@pytest.mark.parametrize("tp", [0, 2])
def test_a_gpt_layer_with_flash_attention(tp):
    ranks = max(1, tp)
    parts = {
        "two residual sums": 2 * 2 * SBH,
        "two norms' results": 2 * 2 * SBH,
        "two norms' mean and rstd, fp32": 2 * 2 * 4 * TOKENS,
        "query, key, value": 3 * 2 * SBH // ranks,
        "attention's result": 2 * SBH // ranks,
        "attention's log-sum-exp, fp32": 4 * TOKENS * SMALL["heads"] // ranks,
        "attention's seed and offset, and an unused third output, uint64": 3 * 8,
        "GELU's input": 4 * 2 * SBH // ranks,
        "GELU's result": 4 * 2 * SBH // ranks,
    }
    graph = capture_gpt(tp, GPU, layers=3, dtype="bfloat16").graph
    assert kept(graph, "layers.1") == sum(parts.values())


class RMSBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32)
        self.up = nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().sum()


def test_rms_norm_is_one_op_on_a_gpu():
    with fake_tensors():
        graph = capture(Blocks(RMSBlock).bfloat16(), torch.randn(8, 4, 32, dtype=torch.bfloat16))
    sbh = 8 * 4 * 32
    # the block's result, the norm's result and fp32 statistics, up's result, silu's result
    assert kept(graph, "layers.1") == 2 * sbh + 2 * sbh + 4 * 8 * 4 + 2 * 2 * 2 * sbh
    assert kinds(graph)["_fused_rms_norm"] == "bfloat16"
    backward = [op for op in graph.ops if op.kind == "aten._fused_rms_norm_backward"]
    assert len(backward) == 3
    assert {graph.layers[1].name, graph.layers[0].name} <= {"layers.0", "layers.1", "loss"}
    assert all(len(op.outputs) == 2 for op in backward)


def test_rms_norm_is_taken_apart_on_the_cpu_and_computes_as_ever():
    with fake_tensors():
        graph = capture(Blocks(RMSBlock), torch.randn(8, 4, 32), machine=CPU)
    assert not any("fused_rms" in op.kind for op in graph.ops)
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    y = F.rms_norm(x, (5,), weight)
    assert torch.allclose(y, x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + torch.finfo(x.dtype).eps) * weight)


class AutocastBlock(nn.Module):
    """A norm, an MLP and a softmax under `autocast("cuda")`, parameters in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return x + self.down(F.gelu(self.up(self.norm(x))).softmax(-1))


def test_autocast_follows_the_gpus_lists():
    with fake_tensors():
        graph = capture(Blocks(AutocastBlock), torch.randn(8, 4, 32))
    sbh = 8 * 4 * 32
    dtypes = kinds(graph)
    assert dtypes["native_layer_norm"] == "float32"
    assert dtypes["addmm"] == dtypes["gelu"] == "bfloat16"
    assert dtypes["_softmax"] == "float32"
    parts = {
        "the block's result": 4 * sbh,
        "the norm's mean and rstd": 2 * 4 * 8 * 4,
        "the norm's result, cast": 2 * sbh,
        "up's result": 2 * 2 * sbh,
        "softmax's result": 2 * 4 * sbh,
        "softmax's result, cast": 2 * 2 * sbh,
        "down's and up's weights, cast": 2 * 2 * 32 * 64,
    }
    assert kept(graph, "layers.1") == sum(parts.values())


def test_autocast_of_the_other_device_does_nothing_and_everything_is_as_before_afterwards():
    class Other(AutocastBlock):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.norm(self.down(self.up(x)))

    with fake_tensors():
        graph = capture(Blocks(Other), torch.randn(8, 4, 32))
    assert {tensor.dtype for tensor in graph.tensors} == {"float32"}
    with pytest.warns(UserWarning, match="CUDA is not available"):
        torch.autocast("cuda")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.layer_norm(torch.randn(2, 4, dtype=torch.bfloat16), (4,)).dtype == torch.bfloat16


def test_exp_sum_and_log_softmax():
    class Ops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=torch.float16):
                y = self.w(x)
                loss = F.cross_entropy(y, torch.zeros(8, dtype=torch.long))
                return y.exp().sum() + y.log_softmax(-1).sum() + F.log_softmax(y, -1, dtype=torch.float16).sum() + loss

    with fake_tensors():
        graph = capture(Ops(), torch.randn(8, 4))
    forward = [op for op in graph.ops if op.phase == "forward"]
    results = {
        kind: [graph.tensors[op.outputs[0]].dtype for op in forward if op.kind == f"aten.{kind}"]
        for kind in ("exp", "sum", "_log_softmax", "addmm")
    }
    assert results["exp"] == ["float32"]
    assert set(results["sum"]) == {"float32"}
    assert sorted(results["_log_softmax"]) == ["float16", "float16", "float32"]  # cross entropy keeps its input's dtype
    assert results["addmm"] == ["float16"]


DECORATED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.context = torch.autocast("cuda", dtype=torch.float16)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        y = self.up(x).float()
        with self.context:
            return self.up(y).float().sum()

def build_model(mesh):
    return Net()

def example_inputs():
    return (torch.randn(2, 4),)
"""


def test_autocast_contexts_made_by_the_model_file_work(tmp_path):
    (tmp_path / "net.py").write_text(DECORATED)
    graph = capture_file(ModelSpec(path=str(tmp_path / "net.py")), (), GPU).graph
    products = [op for op in graph.ops if op.kind == "aten.addmm"]
    assert [graph.tensors[op.outputs[0]].dtype for op in products] == ["bfloat16", "float16"]
