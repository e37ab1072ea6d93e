"""Tensors outside of parameters and buffers, and what forward assigns: run as eager runs them, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lynx_plan
from lynx_plan.errors import LynxError
from lynx_plan.model.capture import CaptureSpec
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.torch_rt.capture import capture_module
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.fake_step import fake_tensors
from lynx_plan.torch_rt.model_file import plain_loss
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.plans import keep_all, plan_of

FRONT_ENDS = ("dynamo", "joint")


class Holder(nn.Module):
    """`block` holds a tensor; `change` is what its forward does to it."""

    def __init__(self, change: Callable[[nn.Module, Tensor], None] | None = None, *, buffer: bool = False) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.change = change
        if buffer:
            self.block.register_buffer("held", torch.ones(4))
        else:
            self.block.held = torch.arange(4.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        if self.change is not None:
            self.change(self.block, y)
        return (y * self.block.held).mean()


def add_in_place(block: nn.Module, _y: Tensor) -> None:
    block.held += 1


def replace_it(block: nn.Module, _y: Tensor) -> None:
    block.held = block.held + 1


def keep_last(block: nn.Module, y: Tensor) -> None:
    block.last = y.detach()


def count(block: nn.Module, _y: Tensor) -> None:
    block.count += 1


def capture(model: nn.Module, front_end: str, args: tuple[Tensor, ...] | None = None) -> CostGraph:
    spec = ModelSpec(path=__file__)
    args, how = args or (torch.ones(2, 4),), CaptureSpec(front_end=front_end)
    return capture_module(model, args, plain_loss, spec=spec, mesh=None, mesh_shape=(), machine=CPU, capture=how).graph


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("buffer", [False, True], ids=["attribute", "buffer"])
@pytest.mark.parametrize("change", [None, add_in_place, keep_last])
def test_state_and_gradients_are_eagers(front_end, buffer, change):
    model, reference = Holder(change, buffer=buffer), Holder(change, buffer=buffer)
    reference.load_state_dict(model.state_dict())
    batches = [(torch.rand(2, 4),) for _ in range(3)]
    graph = capture(model, front_end)
    before = dict(vars(model.block))
    step = lynx_plan.Step(model, plan_of(graph, keep_all(graph)))
    step(batches)
    expected = eager_gradients(reference, plain_loss, batches)
    assert all(torch.equal(p.grad, expected[name]) for name, p in model.named_parameters())
    assert torch.equal(model.block.held, reference.block.held) or change is keep_last
    assert vars(model.block).keys() == before.keys()
    assert graph.static.buffers_bytes == 16


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_fake_attributes_are_captured_too(front_end):
    with fake_tensors():
        model, args = Holder(add_in_place), (torch.ones(2, 4),)
    assert [op.parameter for op in capture(model, front_end, args).ops if op.kind == "lynx.update_buffer"] == [
        "block.held"
    ]


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("buffer", [False, True], ids=["attribute", "buffer"])
def test_state_that_is_replaced_and_read_is_refused(front_end, buffer):
    with pytest.raises(LynxError, match=r"replaces 'block\.held'") as refused:
        capture(Holder(replace_it, buffer=buffer), front_end)
    assert "self.register_buffer('held', ...)" in refused.value.hint


def test_tensors_in_lists_are_refused_where_they_cannot_be_traced():
    with fake_tensors():
        model = Holder()
        model.block.held = [torch.ones(4)]
        model.forward = lambda x: (model.block(x) * model.block.held[0]).mean()
    with pytest.raises(LynxError, match=r"'block\.held' holds tensors that are neither") as refused:
        capture(model, "joint")
    assert "register_buffer('held_0'" in refused.value.hint


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_numbers_that_forward_changes_are_said(front_end):
    model = Holder(count)
    model.block.count = 0
    notes = capture(model, front_end).notes
    assert any("forward changes the number 'block.count'" in note for note in notes)
    assert model.block.count == 0


@pytest.mark.parametrize("hide", [lambda p: p, lambda p: [p], lambda p: {"p": p}], ids=["alone", "list", "dict"])
def test_what_wants_a_gradient_and_is_no_parameter_is_refused(hide):
    model = Holder()
    model.block.held = torch.ones(4)
    model.block.hidden = hide(torch.ones(4, requires_grad=True))
    with pytest.raises(LynxError, match=r"'block\.hidden' requires a gradient and is no parameter"):
        capture(model, "dynamo")
