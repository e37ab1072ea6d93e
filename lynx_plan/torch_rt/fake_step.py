"""What makes a model file run on fake tensors, and what is learned from running its optimizer on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from lynx_plan.torch_rt import compat
from lynx_plan.torch_rt.dtensors import local


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside are fake: shapes without memory."""
    swap = torch.utils.swap_tensors
    torch.utils.swap_tensors = _swap
    try:
        with compat.symbolic_mode():
            yield
    finally:
        torch.utils.swap_tensors = swap


def _swap(old: torch.Tensor, new: torch.Tensor) -> None:
    # `module.to(dtype)` swaps fake parameters and then fails, because the fake mode holds weak references to them.
    old.data = new.data


def optimizer_state(
    build_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer], parameters: Sequence[nn.Parameter]
) -> tuple[str, int, tuple[str, ...]]:
    """(class name, bytes of its state after a step, notes). Runs on fake copies: nothing is allocated or changed."""
    with fake_tensors():
        copies = [
            nn.Parameter(torch.empty_like(local(p), device="cpu"), requires_grad=p.requires_grad) for p in parameters
        ]
        optimizer = build_optimizer(copies)
        alike = _alike(optimizer)
        for copy in alike:
            copy.grad = torch.empty_like(copy)
        name = type(optimizer).__name__
        try:
            optimizer.step()
        except compat.DataDependentOutputException:
            return name, 0, (f"the state of {name} depends on its data, so its bytes are not counted",)
        storages = {
            compat.storage_key(value): value.untyped_storage().nbytes() * alike.get(parameter, 1)
            for parameter, state in optimizer.state.items()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        }
        return name, sum(storages.values()), ()


def _alike(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, int]:
    """The first parameter of each shape and dtype in each group, and how many it stands for: their states are alike."""
    first: dict[tuple[object, ...], nn.Parameter] = {}
    counts: dict[nn.Parameter, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            kind = (number, tuple(parameter.shape), parameter.stride(), parameter.dtype)
            stands = first.setdefault(kind, parameter)
            counts[stands] = counts.get(stands, 0) + 1
    return counts
