"""examples/gpt.py: two tensor-parallel ranks compute the whole model's loss and gradients; all capture one graph."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from lynx_plan.files import digest
from tests.torch_cpu.gpt_case import (
    capture_gpt,
    capture_real,
    is_sharded,
    load_gpt,
    loss_and_gradients,
    randomise,
    shard,
)
from tests.torch_cpu.ranks import run_ranks

RANKS = 2


def on_a_rank(rank: int) -> dict[str, object]:
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    return {str(split).lower(): _case(rank, mesh, split) for split in (False, True)}


def _case(rank: int, mesh, split: bool) -> dict[str, object]:
    spec, file = load_gpt(sequence_parallel=split)
    whole = file.build(None)
    randomise(whole)
    mine = file.build(mesh)
    start = {name: parameter.detach().clone() for name, parameter in mine.named_parameters()}
    graph_digest = digest(capture_real(file, spec, mine, mesh).graph)
    parts = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in mine.named_parameters():
            parameter.copy_(shard(name, parts[name], rank, RANKS))
    whole_loss, whole_gradients = loss_and_gradients(file, whole)
    loss, gradients = loss_and_gradients(file, mine)
    wanted = {name: shard(name, gradient, rank, RANKS).clone() for name, gradient in whole_gradients.items()}
    return {
        "losses": (whole_loss, loss),
        "wanted": wanted,
        "gradients": gradients,
        "digest": graph_digest,
        "start": start,
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(on_a_rank, RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(params=["false", "true"], ids=["tensor", "sequence"])
def split(request):
    return request.param


def test_loss_is_the_whole_models(ranks, split):
    for result in ranks:
        whole, mine = result[split]["losses"]
        torch.testing.assert_close(mine, whole, rtol=1e-5, atol=1e-5)


def test_gradients_are_the_whole_models(ranks, split):
    for result in ranks:
        wanted, gradients = result[split]["wanted"], result[split]["gradients"]
        assert wanted.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5, msg=name)
            assert gradient.abs().max() > 1e-3, name


def test_replicated_weights_start_equal_and_shards_differ(ranks):
    first, second = (result["false"]["start"] for result in ranks)
    for name, weight in first.items():
        drawn = weight.unique().numel() > 1  # biases start at 0, norms at 1
        assert torch.equal(weight, second[name]) == (not drawn or not is_sharded(name)), name


def test_every_rank_captures_what_the_fake_world_does(ranks, split):
    wanted = digest(capture_gpt(RANKS, sequence_parallel=split).graph)
    assert [result[split]["digest"] for result in ranks] == [wanted] * RANKS


def test_one_process_captures_the_same_from_real_and_fake_tensors():
    spec, file = load_gpt(optimizer="adamw")
    assert capture_real(file, spec, file.build(None), None).graph == capture_gpt(0, optimizer="adamw").graph


def test_batches_differ_by_step_microbatch_and_replica():
    _, file = load_gpt()
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    texts = {file.batch(*key)[0].flatten().tolist().__repr__() for key in keys}
    assert len(texts) == len(keys)
    assert torch.equal(file.batch(3, 2, 1)[1], file.batch(3, 2, 1)[1])
