"""Functions that a rewritten graph calls beside ATen ops: accumulation, buffer updates, RNG replay, clock marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def accumulate(main: torch.Tensor, new: torch.Tensor, first: bool) -> None:
    """Main gradient := new for a step's first contribution, += new after it: what autograd's accumulation does."""
    if first:
        main.copy_(new)
    else:
        main.add_(new)


def update_buffer(buffer: torch.Tensor, value: torch.Tensor) -> None:
    """Buffer := value, such as BatchNorm's running statistics."""
    buffer.copy_(value)


def rng_state() -> torch.Tensor:
    """The global generator's state, taken just before an op that draws from it and will be recomputed."""
    return torch.get_rng_state()


def replay(state: torch.Tensor, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op with an earlier state of the generator and leave the present one undisturbed."""
    present = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return target(*args, **kwargs)
    finally:
        torch.set_rng_state(present)


def mark(clock: Callable[[], None]) -> None:
    """A moment between two items, for whoever measures."""
    clock()
