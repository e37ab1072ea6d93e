"""Models parallelised by `parallelize_module`: DTensor parameters, colwise, rowwise and sequence-parallel."""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch

import lynx_plan
from lynx_plan.model.graph import CostGraph, ModelSpec, Phase, Role
from lynx_plan.solve.planner import make_plan
from lynx_plan.torch_rt.capture import capture_file, capture_module
from lynx_plan.torch_rt.dtensors import local
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.model_file import load_model_file
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.ranks import run_ranks

MODEL = """
import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(32, 4)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).square().mean()


def build_model(mesh, *, sequence=False):
    model = Model()
    plain = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    split = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks if mesh is not None else ():
        parallelize_module(block, mesh["tp"], split if sequence else plain)
    return model


def example_inputs():
    return batch(0, 0, 0)


def batch(step, microbatch, dp_rank):
    return (torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(step * 7 + microbatch)),)
"""


def spec(folder: Path, *, sequence: bool) -> ModelSpec:
    path = folder / "model.py"
    path.write_text(textwrap.dedent(MODEL))
    return ModelSpec(path=str(path), arguments=(("sequence", "true"),) if sequence else ())


def captured(model: ModelSpec) -> CostGraph:
    return capture_file(model, (("tp", 2),), CPU).graph


def test_collectives_parameters_and_layers(tmp_path: Path) -> None:
    graph = captured(spec(tmp_path, sequence=False))
    forward = [op for op in graph.ops if op.role is Role.COLLECTIVE and op.phase is Phase.FORWARD]
    assert [(op.kind, op.group, op.group_size) for op in forward] == [("all_reduce", "tp", 2)] * 3
    shapes = {t.name: t.shape for t in graph.tensors if t.producer < 0}
    assert shapes["blocks.0.up.weight"] == (32, 32)
    assert shapes["blocks.0.down.weight"] == (32, 32)
    accumulated = {op.parameter for op in graph.ops if op.role is Role.ACCUMULATE}
    assert "blocks.2.down.bias" in accumulated
    assert sum(layer.name.startswith("blocks.") for layer in graph.layers) == 3


def test_runs_equal_eager_on_two_ranks(tmp_path: Path) -> None:
    """Both kinds in one process per rank: DTensor remembers the first mesh of a process."""
    folders = [tmp_path / "plain", tmp_path / "sequence"]
    for folder in folders:
        folder.mkdir()
    models = [spec(folder, sequence=folder.name == "sequence") for folder in folders]
    for different, kinds in run_ranks(_run, 2, tmp_path, models):
        assert different == [[], [], []] * 2
        assert kinds == [["all_reduce"] * 3, ["all_gather", "reduce_scatter"] * 3]


def _run(rank: int, models: list[ModelSpec]) -> tuple[list[list[str]], list[list[str]]]:
    """Per model and plan, the parameters whose gradients (of two microbatches) are not eager's; forward collectives."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    different, kinds = [], []
    for model_spec in models:
        file = load_model_file(model_spec)
        model = file.build(mesh)
        batches = [file.batch(0, number, 0) for number in range(2)]
        graph = capture_module(
            model, batches[0], file.loss, spec=model_spec, mesh=mesh, mesh_shape=(("tp", 2),), machine=CPU
        ).graph
        forward = [op for op in graph.ops if op.role is Role.COLLECTIVE and op.phase is Phase.FORWARD]
        kinds.append([op.kind for op in forward])
        expected = eager_gradients(model, file.loss, batches)
        for algo, budget in (("none", "100%"), ("full", "100%"), ("heu", "between:full,none,0.3")):
            plan = make_plan(graph, algo=algo, budget=budget, enforce_budget=False).plan
            lynx_plan.Step(model, plan, file.loss, mesh=mesh)(batches)
            found = {name: local(p.grad) for name, p in model.named_parameters()}
            different.append([name for name in expected if not torch.equal(found[name], expected[name])])
        torch.optim.SGD(model.parameters(), lr=0.1).step()  # takes the gradients as they are
    return different, kinds
