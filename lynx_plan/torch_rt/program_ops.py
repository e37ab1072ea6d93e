"""Functions that a rewritten graph calls beside ATen ops: accumulation, buffer updates, random states, clock marks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from lynx_plan.torch_rt.verify import bits_equal


def accumulate(main: torch.Tensor, new: torch.Tensor, first: bool) -> None:
    """Main gradient := new for a step's first contribution, += new after it: what autograd's accumulation does."""
    if first:
        main.copy_(new)
    else:
        main.add_(new)


def take(carried: list[torch.Tensor | None], index: int) -> torch.Tensor:
    """A value that an earlier part of the step made; the list lets go of it."""
    value, carried[index] = carried[index], None
    assert value is not None, index
    return value


def update_buffer(buffer: torch.Tensor, value: torch.Tensor) -> None:
    """Buffer := value, such as BatchNorm's running statistics."""
    buffer.copy_(value)


def view(x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """`x` in another shape: a view, as it was traced, or a copy where a kernel gave `x` other strides than traced."""
    try:
        return x.view(shape)
    except RuntimeError:
        text = f"a tensor of shape {list(x.shape)} has other strides than PyTorch's tracing said: it is copied"
        warnings.warn(text, stacklevel=2)
        return x.reshape(shape)


def save_random_state(device: str) -> torch.Tensor:
    """The state of the device's generator, before an op that draws from it and will run again."""
    state = torch.cuda.get_rng_state(device) if device.startswith("cuda") else torch.get_rng_state()
    return state.detach()  # an op, so that whoever counts live bytes sees the state


def replay_random(state: torch.Tensor, device: str, op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run `op` as its original ran, from the state saved before it; the generator's own stream goes on undisturbed."""
    read, write = torch.get_rng_state, torch.set_rng_state
    if device.startswith("cuda"):
        read, write = (lambda: torch.cuda.get_rng_state(device)), (lambda new: torch.cuda.set_rng_state(new, device))
    own = read()
    write(state)
    try:
        return op(*args, **kwargs)
    finally:
        write(own)


def compare(tell: Callable[[str], None], name: str, original: torch.Tensor, copy: torch.Tensor) -> None:
    """Tell the name of a copy whose bits are not its original's."""
    if not bits_equal(original, copy):
        tell(name)


def mark(clock: Callable[[], None]) -> None:
    """A moment between two items, for whoever measures."""
    clock()
