"""Repeated blocks that Dynamo reads once: the same graph as when it reads each, whatever differs between them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lynx_plan
from lynx_plan.model.capture import CaptureSpec
from lynx_plan.model.graph import CostGraph, ModelSpec
from lynx_plan.torch_rt import dynamo
from lynx_plan.torch_rt.capture import capture_module
from lynx_plan.torch_rt.eager import eager_gradients
from lynx_plan.torch_rt.model_file import plain_loss
from tests.torch_cpu.gpt_case import CPU
from tests.torch_cpu.plans import keep_all, plan_of


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return Double.apply(F.gelu(self.inner(x)))


class Scaled(Block):
    """Each block multiplies by a number of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (self.number + 1)


class Sometimes(Block):
    """Every second block has a norm."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.norm = nn.LayerNorm(8) if number % 2 else None

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x if self.norm is None else self.norm(x))


class Dropping(Block):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.drop = nn.Dropout(0.1 + 0.2 * (number % 2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.inner(x))


class Normed(Block):
    """Its buffers change in forward."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner(x))


class InPlace(Block):
    """It changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        x *= 2
        return x + self.inner(x)


class Structured(Block):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": self.inner(x), "again": x}


class Nested(Block):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.blocks = nn.ModuleList(Block(i) for i in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.inner(x)


class Stack(nn.Module):
    def __init__(self, kind: type[Block], *, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(kind(number) for number in range(4))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
            x = x["x"] if isinstance(x, dict) else x
        return x.square().mean()


KINDS = [Block, Scaled, Sometimes, Dropping, Normed, InPlace, Structured, Nested]
MODELS = {kind.__name__: (kind, False) for kind in KINDS} | {"checkpointed": (Block, True)}


def capture(model: nn.Module) -> CostGraph:
    how = CaptureSpec(front_end="dynamo")
    spec = ModelSpec(path=__file__)
    args = (torch.ones(3, 8),)
    return capture_module(model, args, plain_loss, spec=spec, mesh=None, mesh_shape=(), machine=CPU, capture=how).graph


@pytest.mark.parametrize(("kind", "checkpointed"), MODELS.values(), ids=MODELS)
def test_the_graph_is_that_of_reading_each_block(kind, checkpointed, monkeypatch):
    model = Stack(kind, checkpointed=checkpointed)
    once = capture(model)
    monkeypatch.setattr(dynamo, "repeated_regions", lambda _: nullcontext())
    each = capture(model)
    assert once == each
    assert [layer.name for layer in once.layers if layer.name.startswith("layers")] == [f"layers.{i}" for i in range(4)]


@pytest.mark.parametrize(("kind", "checkpointed"), MODELS.values(), ids=MODELS)
def test_gradients_are_eagers(kind, checkpointed):
    model, batches = Stack(kind, checkpointed=checkpointed), [(torch.rand(3, 8),) for _ in range(2)]
    graph = capture(model)
    torch.manual_seed(3)
    expected = eager_gradients(model, plain_loss, batches)
    torch.manual_seed(3)
    lynx_plan.Step(model, plan_of(graph, keep_all(graph)))(batches)
    assert all(torch.equal(p.grad, expected[name]) for name, p in model.named_parameters())


def test_blocks_that_are_alike_are_read_once(monkeypatch):
    read = []
    forward = Block.forward
    inline = dynamo.inline_regions

    def count(graph: torch.fx.GraphModule) -> None:
        read.append(len({id(m) for name, m in graph.named_modules() if name.count(".") == 0 and "subgraph" in name}))
        inline(graph)

    monkeypatch.setattr(dynamo, "inline_regions", count)
    capture(Stack(Block))
    assert read == [1]
    assert Block.forward is forward
