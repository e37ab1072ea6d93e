"""Case batchnorm: 3x3 convolutions, BatchNorm, in-place ReLU."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
            for width in (3, 16, 16, 16)
        )

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
    return (torch.randn(4, 3, 32, 32, generator=generator),)
