"""Random numbers of every kind: rand_like, bernoulli, normal, exponential, randint, alpha dropout, rrelu."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        y = self.linear(x)
        uniform = torch.rand_like(y)
        gumbel = -torch.empty_like(y).exponential_().log()
        kept = torch.bernoulli(torch.full_like(y, 0.8))
        whole = torch.randint(0, 2, y.shape, device=y.device)
        noisy = y + 0.1 * torch.randn(y.shape, device=y.device) + torch.normal(0.0, 0.1, y.shape, device=y.device)
        y = F.alpha_dropout(noisy, 0.1, training=True) * kept + uniform * (y + gumbel).softmax(-1) * whole
        return x + F.rrelu(y, training=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(8, 16, 32, generator=generator),)
