"""examples/megatron.py: its attention is attention, and two ranks compute the whole model's loss and gradients."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt.model_file import load_model_file
from tests.torch_cpu.gpt_case import COLUMNS, EXAMPLE, ROWS, SMALL, loss_and_gradients, randomise
from tests.torch_cpu.ranks import run_ranks

RANKS = 2


def load(split: bool):
    arguments = {**SMALL, "sequence_parallel": str(split).lower(), "dropout": 0.0}
    pairs = tuple(sorted((key, str(value)) for key, value in arguments.items()))
    return load_model_file(ModelSpec(path=str(EXAMPLE.with_name("megatron.py")), arguments=pairs))


def shard(name: str, whole: Tensor, rank: int) -> Tensor:
    if "qkv" in name or name.endswith(COLUMNS):
        return whole.chunk(RANKS, 0)[rank]
    return whole.chunk(RANKS, 1)[rank] if name.endswith(ROWS) else whole


def on_a_rank(rank: int) -> list[tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    return [_case(rank, mesh, split) for split in (False, True)]


def _case(rank: int, mesh, split: bool) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    file = load(split)
    whole = file.build(None)
    randomise(whole)
    mine = file.build(mesh)
    parts = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in mine.named_parameters():
            parameter.copy_(shard(name, parts[name], rank))
    whole_loss, whole_gradients = loss_and_gradients(file, whole)
    loss, gradients = loss_and_gradients(file, mine)
    wanted = {name: shard(name, gradient, rank).clone() for name, gradient in whole_gradients.items()}
    return whole_loss, loss, wanted, gradients


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(on_a_rank, RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("split", [0, 1], ids=["tensor", "sequence"])
def test_loss_and_gradients_are_the_whole_models(ranks, split):
    for result in ranks:
        whole_loss, loss, wanted, gradients = result[split]
        torch.testing.assert_close(loss, whole_loss, rtol=1e-5, atol=1e-5)
        assert wanted.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5, msg=name)
            assert gradient.abs().max() > 1e-3, name


def test_attention_is_causal_attention():
    load(False)  # puts the example's folder on the path
    megatron, gpt = importlib.import_module("megatron"), importlib.import_module("gpt")
    attention = megatron.Attention(gpt.TensorParallel(None, False), 32, 4, 0.0)
    randomise(attention)
    x = torch.randn(6, 2, 32)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    qkv = F.linear(x, attention.qkv.weight, attention.qkv.bias).unflatten(-1, (4, 3, 8)).permute(3, 1, 2, 0, 4)
    mixed = F.scaled_dot_product_attention(*qkv.unbind(), is_causal=True).permute(2, 0, 1, 3).flatten(2)
    wanted = F.linear(mixed, attention.projection.weight)
    torch.testing.assert_close(attention(x, future), wanted, rtol=1e-5, atol=1e-5)


def test_the_ends_share_their_matrix_and_dropout_drops():
    spec = ModelSpec(path=str(EXAMPLE.with_name("megatron.py")), arguments=(("dropout", "0.5"),))
    file = load_model_file(spec)
    model = file.build(None)
    assert model.head.logits.weight is model.embedding.token
    losses = {float(model(*file.example_inputs())) for _ in range(2)}
    assert len(losses) == 2
