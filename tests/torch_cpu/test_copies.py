"""Random ops that run again draw what they drew; a copy that does not is found and named."""

from __future__ import annotations

import pytest
import torch

from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt import program_ops
from lynx_plan.torch_rt.bind import Bound, bind
from lynx_plan.torch_rt.model_file import load_model_file
from lynx_plan.torch_rt.step import Step
from tests.torch_cpu.gpt_case import capture_real
from tests.torch_cpu.plans import plan_of, recompute_all
from tests.zoo import FOLDER


def bound_step(name: str) -> tuple[Step, Bound, tuple[torch.Tensor, ...]]:
    """A step that recomputes all it may of a model of the zoo."""
    spec = ModelSpec(path=str(FOLDER / f"{name}.py"))
    file = load_model_file(spec)
    model = file.build(None)
    captured = capture_real(file, spec, model, None)
    bound = bind(captured, plan_of(captured.graph, recompute_all(captured.graph)), None)
    return Step.of(model, bound), bound, file.example_inputs()


@pytest.mark.parametrize("name", ["dropout", "random_kinds", "attention_dropout", "resnet"])
def test_copies_are_what_their_originals_were(name):
    step, bound, args = bound_step(name)
    assert any(item.replica for item in bound.items)
    assert step.wrong_copy(args) == ""


def test_the_stream_of_random_numbers_is_left_as_eager_leaves_it():
    step, _, args = bound_step("dropout")
    torch.manual_seed(3)
    step.model(*args)
    expected = torch.rand(4)
    torch.manual_seed(3)
    step([args])
    assert torch.equal(torch.rand(4), expected)


def test_an_altered_state_is_found_and_the_op_named(monkeypatch):
    right = program_ops.replay_random
    monkeypatch.setattr(program_ops, "replay_random", lambda state, *args, **more: right(altered(state), *args, **more))
    step, _, args = bound_step("dropout")
    assert step.wrong_copy(args) == "blocks.2.native_dropout_4@r1"


def altered(state: torch.Tensor) -> torch.Tensor:
    """Another seed."""
    kept = torch.get_rng_state()
    torch.manual_seed(99)
    other = torch.get_rng_state()
    torch.set_rng_state(kept)
    return other


def test_a_replay_that_disturbs_the_stream_would_be_seen(monkeypatch):
    monkeypatch.setattr(program_ops, "replay_random", lambda state, device, op, *args, **more: op(*args, **more))
    step, _, args = bound_step("dropout")
    assert step.wrong_copy(args) != ""
