"""Six blocks, of which the fourth looks at its data: it cannot be traced, and is kept whole."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, BRANCHING = 128, 3


class Block(nn.Module):
    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.branches = branches

    def forward(self, x):
        y = self.down(F.gelu(self.up(x)))
        if self.branches and x.sum() > 0:
            y = y * 2
        return x + y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(i == BRANCHING) for i in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(step * 1009 + microbatch * 101 + dp_rank)
    return (torch.randn(64, WIDTH, generator=generator),)
