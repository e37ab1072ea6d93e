"""Case autocast: bfloat16 autocast around the forward, the norm in a block without it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up, self.down = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            y = self.norm(x.float())
        return x + self.down(F.gelu(self.up(y)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(5))

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            for block in self.blocks:
                x = block(x)
        return x.float().square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(4, 64, 128, generator=generator),)
