"""Operands for measurement: real tensors of the right shape, stride and dtype that are not cache-hot.

Float operands are windows of one large pool per dtype at offsets that move on from set to set, so that a
set is touched again only after `SPAN_BYTES` of others. Nothing is filled per op, however large.
"""

from __future__ import annotations

import math
from typing import Any

import torch

SPAN_BYTES = 96 * 2**20  # well beyond a core's share of the last-level cache
_ALIGN_BYTES = 64


def elements(tensor: dict[str, Any]) -> int:
    """Elements of the storage that a strided tensor spans."""
    if 0 in tensor["shape"]:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor["shape"], tensor["stride"], strict=True))


def span_bytes(tensor: dict[str, Any]) -> int:
    """Bytes of that storage, rounded up to the allocator's alignment."""
    count = elements(tensor) * getattr(torch, tensor["dtype"]).itemsize
    return math.ceil(count / _ALIGN_BYTES) * _ALIGN_BYTES


class OperandPool:
    """Hands out operand tensors; `limit` bounds the values of integer operands (exclusive)."""

    def __init__(self) -> None:
        self._pools: dict[torch.dtype, torch.Tensor] = {}
        self._next: dict[torch.dtype, int] = {}

    def tensor(self, data: dict[str, Any], limit: int = 2, integers: int | None = None) -> torch.Tensor:
        """A tensor of that shape, stride and dtype: floats in [0.1, 1), integers below `limit`, or all `integers`."""
        dtype: torch.dtype = getattr(torch, data["dtype"])
        if not (dtype.is_floating_point and dtype.itemsize >= 2):
            base = _small_values(elements(data), dtype, limit)
            if integers is not None and not (dtype.is_floating_point or dtype.is_complex):
                base.fill_(integers)
            return base.as_strided(data["shape"], data["stride"])
        count = span_bytes(data) // dtype.itemsize
        pool = self._pool(dtype, count)
        start = self._next.get(dtype, 0)
        if start + count > pool.numel():
            start = 0
        self._next[dtype] = start + count
        return pool.as_strided(data["shape"], data["stride"], start)

    def _pool(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        pool = self._pools.get(dtype)
        if pool is None or pool.numel() < count:
            size = max(count, SPAN_BYTES // dtype.itemsize)
            block = torch.rand(min(size, 2**20)).mul_(0.9).add_(0.1).to(dtype)
            pool = block.repeat(math.ceil(size / block.numel()))
            self._pools[dtype], self._next[dtype] = pool, 0
        return pool


def _small_values(count: int, dtype: torch.dtype, limit: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,)).bool()
    if dtype.is_complex or dtype.is_floating_point:
        return torch.rand(count).to(dtype)
    return torch.randint(0, max(limit, 1), (count,)).to(dtype)
