"""Run a kept block in a program: the real module under autograd, its graph held by a handle until its backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from lynx_plan.torch_rt.call_shape import shape_of
from lynx_plan.torch_rt.kept_facts import KeptFacts


class _Entry(torch.autograd.Function):
    """Gives a block its input, whose gradient goes to `leaf`: autograd holds the input only if the block saves it."""

    @staticmethod
    def forward(_ctx: Any, _leaf: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclass(frozen=True)
class Block:
    """A block of the running model, and what tracing learned of it."""

    module: nn.Module
    facts: KeptFacts

    def forward(self, inputs: list[Tensor]) -> list[Any]:
        """[outputs, a handle on what autograd saved, no scratch]."""
        leaves = [
            t.new_empty(1).expand(t.shape).requires_grad_() if self._takes(i) else None for i, t in enumerate(inputs)
        ]
        with torch.enable_grad():
            own = [t if leaf is None else _Entry.apply(leaf, t) for leaf, t in zip(leaves, inputs, strict=True)]
            args, kwargs = self.facts.call.rebuild(tuple(own))
            _, outputs = shape_of(((self.module(*args, **kwargs),), {}))
        edges = [get_gradient_edge(outputs[i]) for i in self.facts.differentiable_outputs]
        return [*(t.detach() for t in outputs), ([leaf for leaf in leaves if leaf is not None], edges), None]

    def backward(self, handle: Any, gradients: list[Tensor]) -> list[Any]:
        """[gradients, no scratch]. A gradient that nothing reaches is zero."""
        leaves, edges = handle
        wanted = [*leaves, *(p for _, p in self.module.named_parameters() if p.requires_grad)]
        made = torch.autograd.grad(edges, wanted, gradients, allow_unused=True)
        return [*(torch.zeros_like(t) if g is None else g for g, t in zip(made, wanted, strict=True)), None]

    def _takes(self, number: int) -> bool:
        return self.facts.takes_gradient[number]


def forward(block: Block, inputs: list[Tensor], _parameters: list[Tensor]) -> list[Any]:
    """In the place of `lynx.kept_forward`."""
    return block.forward(inputs)


def backward(block: Block, handle: Any, _held: list[Tensor], gradients: list[Tensor]) -> list[Any]:
    """In the place of `lynx.kept_backward`."""
    return block.backward(handle, gradients)
