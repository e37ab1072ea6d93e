"""Depthwise convolutions, GroupNorm, layer scale, channels-last memory."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.norm = nn.GroupNorm(4, 16)
        self.up, self.down = nn.Conv2d(16, 64, 1), nn.Conv2d(64, 16, 1)
        self.scale = nn.Parameter(torch.full((16, 1, 1), 0.5))

    def forward(self, x):
        return x + self.scale * self.down(F.gelu(self.up(self.norm(self.depthwise(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, stride=2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, images):
        x = self.stem(images).contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x)
        return x.mean((2, 3)).square().sum(1).mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(2, 3, 16, 16, generator=generator),)
