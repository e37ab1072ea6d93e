"""`lynx_plan.Step` in a loop of one's own: equal to eager training, bound to its model, safe among ranks."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import lynx_plan
from lynx_plan import files
from lynx_plan.errors import AnswerNo, LynxError
from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt.capture import capture_module
from lynx_plan.torch_rt.failure import Disagreement
from lynx_plan.torch_rt.model_file import plain_loss
from lynx_plan.torch_rt.verify import bits_equal, first_difference
from tests.torch_cpu.gpt_case import CPU, capture_gpt, capture_real, load_gpt, randomise
from tests.torch_cpu.plans import keep_all, plan_of, recompute_all
from tests.torch_cpu.ranks import run_ranks


def gpt():
    """A small GPT, a plan that recomputes all of it, and three microbatches."""
    spec, file = load_gpt()
    model = file.build(None)
    randomise(model)
    captured = capture_real(file, spec, model, None)
    return model, plan_of(captured.graph, recompute_all(captured.graph)), [file.batch(0, n, 0) for n in range(3)]


def test_training_equals_eager_training(tmp_path):
    model, plan, batches = gpt()
    files.write(plan, tmp_path / "plan.json", overwrite=False)
    reference = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (model, reference))
    step = lynx_plan.Step(model, tmp_path / "plan.json")
    for count in (2, 3, 2):  # any number of microbatches
        losses = step(batches[:count])
        ours.step()
        ours.zero_grad()  # sets .grad to None; the step brings it back
        theirs.zero_grad()
        expected = []
        for args in batches[:count]:
            loss = plain_loss(reference(*args))
            loss.backward()
            expected.append(loss.detach())
        theirs.step()
        assert bits_equal(losses, torch.stack(expected))
    assert first_difference(dict(reference.named_parameters()), dict(model.named_parameters())) == ""
    assert not losses.requires_grad


def test_gradients_are_overwritten_and_frozen_parameters_get_none():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    model[0].weight.requires_grad_(False)
    x = torch.randn(3, 4)
    plan = _plan_of_module(model, (x,), _mean_square)
    step = lynx_plan.Step(model, plan, _mean_square, example_inputs=(x,))
    step([(x,)])
    once = model[2].weight.grad.clone()
    step([(x,)])
    assert torch.equal(model[2].weight.grad, once)
    assert model[0].weight.grad is None
    assert model[0].bias.grad is not None


def _plan_of_module(model, args, loss=plain_loss):
    spec = ModelSpec(path=__file__)
    captured = capture_module(model, args, loss, spec=spec, mesh=None, mesh_shape=(), machine=CPU)
    return plan_of(captured.graph, keep_all(captured.graph))


def test_a_loss_function_is_part_of_the_step():
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    step = lynx_plan.Step(model, _plan_of_module(model, (x,), _mean_square), _mean_square)
    assert torch.equal(step([(x,)])[0], _mean_square(model(x)).detach())
    with pytest.raises(LynxError, match="scalar"):
        lynx_plan.Step(model, step.plan, example_inputs=(x,))


def _mean_square(output):
    return output.pow(2).mean()


def test_losses_keep_the_models_dtype():
    model = nn.Linear(4, 2).double()
    captured = capture_module(
        model, (torch.randn(3, 4).double(),), lambda out: out.square().mean(), spec=ModelSpec(path=""), mesh=None,
        mesh_shape=(), machine=CPU,
    )  # fmt: skip
    step = lynx_plan.Step(model, plan_of(captured.graph, keep_all(captured.graph)), lambda out: out.square().mean())
    x = torch.randn(3, 4).double()
    assert bits_equal(step([(x,)]), model(x).square().mean().detach().reshape(1))


def test_another_model_is_refused_with_the_differences():
    _, plan, batches = gpt()
    _, file = load_gpt(layers=3)
    step = lynx_plan.Step(file.build(None), plan)
    with pytest.raises(
        AnswerNo, match=r"the model changed since the plan was made: layers: planned 4, now 5"
    ) as caught:
        step(batches)
    assert "lynx profile" in caught.value.hint


def test_other_shapes_are_refused():
    model, plan, batches = gpt()
    narrow = tuple(tensor[:, :1].contiguous() for tensor in batches[0])
    with pytest.raises(AnswerNo, match=r"int64\[16,2\].*now.*int64\[16,1\]"):
        lynx_plan.Step(model, plan, example_inputs=narrow)


def test_a_microbatch_has_the_examples_arguments():
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    step = lynx_plan.Step(model, _plan_of_module(model, (x,), _mean_square), _mean_square)
    step([(x,)])
    step([x])  # one argument needs no tuple
    for wrong, message in (([(x, x)], "nested"), ([()], "nested"), ([(1,)], "is 1"), ([(x.double(),)], "float64")):
        with pytest.raises(LynxError, match=message):
            step(wrong)


def test_no_microbatches():
    model, plan, _ = gpt()
    with pytest.raises(LynxError, match="at least one microbatch"):
        lynx_plan.Step(model, plan)([])


def test_on_two_ranks_of_plain_gloo(tmp_path):
    for differences, refusal in run_ranks(_on_a_rank, 2, tmp_path):
        assert differences == ""
        assert refusal.startswith("rank 1 holds another plan than rank 0")


def _on_a_rank(rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    spec, file = load_gpt()
    model = file.build(mesh)
    randomise(model, seed=rank)
    graph = capture_real(file, spec, model, mesh).graph
    plan = plan_of(graph, recompute_all(graph))
    batches = [file.batch(0, number, 0) for number in range(2)]
    for args in batches:
        file.loss(model(*args)).backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    lynx_plan.Step(model, plan, mesh=mesh)(batches)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    other = plan if rank == 0 else plan_of(graph, keep_all(graph))
    try:
        lynx_plan.Step(model, other, mesh=mesh)(batches)
        refusal = ""
    except Disagreement as error:
        refusal = str(error)
    dist.barrier()
    return first_difference(expected, found), refusal


def test_a_plan_from_a_fake_world_binds_to_real_ranks(tmp_path):
    graph = capture_gpt(2).graph
    files.write(plan_of(graph, recompute_all(graph)), tmp_path / "plan.json", overwrite=False)
    assert run_ranks(_bind_from_file, 2, tmp_path, str(tmp_path / "plan.json")) == [2, 2]


def _bind_from_file(rank, path):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    _, file = load_gpt()
    step = lynx_plan.Step(file.build(mesh), path, mesh=mesh)
    return len(step([file.batch(0, number, 0) for number in range(2)]))


def test_a_mesh_of_one_rank_is_as_good_as_none(tmp_path):
    assert run_ranks(_on_one_rank, 1, tmp_path) == [1]


def _on_one_rank(rank):
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    step = lynx_plan.Step(model, _plan_of_module(model, (x,), _mean_square), _mean_square, mesh=mesh)
    return len(step([(x,)]))
