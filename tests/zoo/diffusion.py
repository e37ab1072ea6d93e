"""Denoiser: sinusoidal time embedding, einsum attention over pixels, noise drawn in forward."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, 16)
        self.convolution = nn.Conv2d(16, 16, 3, padding=1)
        self.time = nn.Linear(32, 32)
        self.qkv, self.out = nn.Conv1d(16, 48, 1), nn.Conv1d(16, 16, 1)

    def forward(self, x, time):
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
        x = x + self.convolution(F.silu(self.norm(x) * (1 + scale) + shift))
        q, k, v = self.qkv(x.flatten(2)).chunk(3, 1)
        weights = torch.einsum("bci,bcj->bij", q, k).div(4).softmax(-1)
        return x + self.out(torch.einsum("bij,bcj->bci", weights, v)).unflatten(2, x.shape[2:])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, images, time):
        noise = torch.randn_like(images)
        level = time.cos()[:, None, None, None]
        noisy = level * images + (1 - level.square()).clamp_min(0).sqrt() * noise
        angles = time[:, None] * torch.exp(-torch.arange(16, device=time.device) / 4)
        embedded = torch.cat((angles.sin(), angles.cos()), -1)
        x = self.stem(noisy)
        for block in self.blocks:
            x = block(x, embedded)
        return F.mse_loss(self.head(x), noise)


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(2, 3, 12, 12, generator=generator), torch.rand(2, generator=generator))
