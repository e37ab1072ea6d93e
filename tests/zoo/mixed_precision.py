"""bfloat16 blocks between float32 embedding and loss, float64 in the loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))).square())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block().bfloat16() for _ in range(2))

    def forward(self, x):
        x = self.embedding(x).bfloat16()
        for block in self.blocks:
            x = block(x)
        return x.double().square().mean().float()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(4, 16, 16, generator=generator),)
