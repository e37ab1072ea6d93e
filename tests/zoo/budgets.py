"""Case budgets: gated MLP blocks (16 of 256/1024 with 256 rows in the case itself)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    def __init__(self, width: int, hidden: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def build_model(mesh: object, width: int = 64, hidden: int = 256, blocks: int = 4) -> nn.Module:
    return Model(width, hidden, blocks)


def example_inputs(width: int = 64, rows: int = 64) -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0, width, rows)


def batch(step: int, microbatch: int, dp_rank: int, width: int = 64, rows: int = 64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(4, rows, width, generator=generator),)
