"""The untouched model through PyTorch's own autograd: what plans are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lynx_plan.torch_rt.call_shape import call
from lynx_plan.torch_rt.dtensors import local
from lynx_plan.torch_rt.native_ops import step_by_step


class EagerStep:
    """Forward and `backward()` of each microbatch, gradients accumulated into the existing `.grad` tensors."""

    def __init__(
        self, model: nn.Module, loss: Callable[[Any], torch.Tensor], average: Callable[[], None] | None = None
    ) -> None:
        self.model, self._loss, self._average = model, loss, average

    def __call__(self, microbatches: Sequence[tuple[Any, ...]], *, average: bool = True) -> torch.Tensor:
        """Run all microbatches, then the average over data-parallel ranks; the losses [len(microbatches)]."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        losses = []
        for args in microbatches:
            loss = self._loss(call(self.model, args))
            loss.backward()
            losses.append(loss.detach().clone())
            del loss
        if average and self._average is not None:
            self._average()
        return torch.stack(losses)


def eager_gradients(
    model: nn.Module,
    loss: Callable[[Any], torch.Tensor],
    microbatches: Sequence[tuple[Any, ...]],
    average: Callable[[], None] | None = None,
) -> dict[str, torch.Tensor]:
    """Gradients of one step by parameter name, in new tensors; the model's `.grad` stays as it was.

    `average` is called at the end, as in `EagerStep`.
    Each `.grad` starts as None, so that the first contribution is taken as it is (0 + -0.0 is not -0.0).
    """
    kept = {name: parameter.grad for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = None
    with step_by_step():
        for args in microbatches:
            loss(call(model, args)).backward()
    if average is not None:
        average()
    made = {name: local(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        parameter.grad = kept[name]
    return made
