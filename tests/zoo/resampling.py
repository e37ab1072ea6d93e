"""Images resized, padded, unfolded, shuffled and sampled on a grid."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        y = F.relu(self.convolution(F.pad(x, (1, 1, 1, 1), mode="reflect")))
        y = F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="bilinear", align_corners=False)
        return x + F.pixel_shuffle(F.pixel_unshuffle(y, 2), 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(27, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.shift = nn.Parameter(torch.tensor([[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]]))

    def forward(self, images):
        x = self.stem(F.unfold(images, 3, padding=1).transpose(1, 2)).transpose(1, 2).unflatten(2, (12, 12))
        for block in self.blocks:
            x = block(x)
        grid = F.affine_grid(self.shift.expand(len(x), -1, -1), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False).square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(2, 3, 12, 12, generator=generator),)
