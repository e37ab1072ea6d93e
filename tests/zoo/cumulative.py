"""Linear attention by cumulative sums, logsumexp, cumprod and a cumulative maximum."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = (k[..., None] * v[..., None, :]).cumsum(1)
        norms = (q * k.cumsum(1)).sum(-1, keepdim=True)
        y = torch.einsum("btd,btde->bte", q, sums) / norms
        decay = torch.sigmoid(x[..., :1]).cumprod(1)
        return x + self.out(y * decay) + x.cummax(1).values


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.logsumexp(-1).mean() + x.logcumsumexp(1).mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(2, 12, 16, generator=generator),)
