"""Functions that a rewritten graph calls beside ATen ops: accumulation, buffer updates, clock marks."""

from __future__ import annotations

from collections.abc import Callable

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


def mark(clock: Callable[[], None]) -> None:
    """A moment between two items, for whoever measures."""
    clock()
