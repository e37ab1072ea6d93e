"""The small GPT that the tests capture and run, and how a whole model's weights are cut into shards."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from lynx_plan.model.graph import ModelSpec
from lynx_plan.model.machine import Link, Machine
from lynx_plan.torch_rt.capture import Captured, capture_file, capture_module
from lynx_plan.torch_rt.model_file import ModelFile, load_model_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt.py"
HEADS, HIDDEN = 4, 32
SMALL = {"layers": 2, "hidden": HIDDEN, "heads": HEADS, "sequence": 16, "vocab": 64, "micro_batch": 2}
LINK = Link(bytes_per_s=10**9, latency_ns=1000)
CPU = Machine(name="test-cpu", device="cpu", memory_bytes=2**34, margin_bytes=0, link=LINK)
COLUMNS = ("mlp.up.weight", "mlp.up.bias", "embedding.token", "head.logits.weight")  # cut by rows of the weight
ROWS = ("projection.weight", "mlp.down.weight")  # cut by columns of the weight


def gpt_spec(**arguments: object) -> ModelSpec:
    merged = {**SMALL, **arguments}
    pairs = tuple(sorted((key, str(value).lower()) for key, value in merged.items()))
    return ModelSpec(path=str(EXAMPLE), arguments=pairs)


def capture_gpt(tp: int, machine: Machine = CPU, **arguments: object) -> Captured:
    """Captured on fake tensors; tp 0: no mesh."""
    return capture_file(gpt_spec(**arguments), (("tp", tp),) if tp else (), machine)


def capture_real(file: ModelFile, spec: ModelSpec, model: nn.Module, mesh) -> Captured:
    """Captured from a real module."""
    return capture_module(
        model,
        file.example_inputs(),
        file.loss,
        spec=spec,
        mesh=mesh,
        mesh_shape=(("tp", mesh.size()),) if mesh is not None else (),
        machine=CPU,
        build_optimizer=file.build_optimizer,
    )


def load_gpt(**arguments: object) -> tuple[ModelSpec, ModelFile]:
    spec = gpt_spec(**arguments)
    return spec, load_model_file(spec)


def is_sharded(name: str) -> bool:
    return "qkv" in name or name.endswith(COLUMNS) or name.endswith(ROWS)


def shard(name: str, whole: Tensor, rank: int, ranks: int) -> Tensor:
    """A rank's part of a parameter, or of its gradient, of the whole model."""
    if "qkv" in name:
        heads = whole.unflatten(0, (3, HEADS, HIDDEN // HEADS))
        return heads.chunk(ranks, 1)[rank].flatten(0, 2)
    if name.endswith(COLUMNS):
        return whole.chunk(ranks, 0)[rank]
    return whole.chunk(ranks, 1)[rank] if name.endswith(ROWS) else whole


def loss_and_gradients(file: ModelFile, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    loss = file.loss(model(*file.example_inputs()))
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Weights large enough, and biases and norms uneven enough, that every mistake shows in the gradients."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(std=0.2, generator=generator))
