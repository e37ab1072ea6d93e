"""Case dropout: masks that may be drawn again from a saved state (6 blocks of width 256 in the case itself)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + F.dropout(self.down(F.dropout(F.gelu(self.up(x)), 0.1)), 0.1)


class Model(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def build_model(mesh: object, width: int = 64, blocks: int = 3) -> nn.Module:
    return Model(width, blocks)


def example_inputs(width: int = 64, rows: int = 32) -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0, width, rows)


def batch(step: int, microbatch: int, dp_rank: int, width: int = 64, rows: int = 32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(8, rows, width, generator=generator),)
