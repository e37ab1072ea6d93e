"""Are a plan's gradients those of the untouched model, bit for bit?"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Same shape, type and bits: NaNs equal themselves, and 0.0 is not -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    integer = _INTEGERS[one.element_size()]
    return torch.equal(one.contiguous().view(integer), other.contiguous().view(integer))


def first_difference(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str:
    """The first parameter (in the model's order) whose gradient differs or is missing on one side; empty if none."""
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name not in expected or name not in found or not bits_equal(expected[name], found[name]):
            return name
    return ""


def first_difference_of_ranks(own: str) -> str:
    """`PARAMETER (rank N)` of the lowest rank with a difference; empty if no rank has one. All ranks call it."""
    if not dist.is_initialized():
        return own
    size = 256
    text = own.encode()[:size].ljust(size, b"\0")
    mine = torch.tensor(list(text), dtype=torch.uint8)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    names = [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in found]
    return next((f"{name} (rank {rank})" for rank, name in enumerate(names) if name), "")
