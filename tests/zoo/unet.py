"""Encoder and decoder of convolutions with skip connections over the whole depth."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def convolutions(width: int, out: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, out, 3, padding=1),
        nn.GroupNorm(2, out),
        nn.SiLU(),
        nn.Conv2d(out, out, 3, padding=1),
        nn.SiLU(),
    )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(convolutions(*widths) for widths in ((1, 8), (8, 16), (16, 32)))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(*widths, 2, stride=2) for widths in ((32, 16), (16, 8)))
        self.up = nn.ModuleList(convolutions(*widths) for widths in ((32, 16), (16, 8)))
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, images):
        x, skips = images, []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for block, rise, skip in zip(self.up, self.rise, reversed(skips[:-1]), strict=True):
            x = block(torch.cat((rise(x), skip), 1))
        return F.mse_loss(self.head(x), images)


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(2, 1, 16, 16, generator=generator),)
