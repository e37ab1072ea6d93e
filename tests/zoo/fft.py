"""Complex numbers: mixing by FFT, and learned filters in the frequency domain."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.filter = nn.Parameter(0.1 * torch.randn(9, 32, dtype=torch.complex64) + 1)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        frequencies = torch.fft.rfft(self.norm(x), dim=1)
        x = x + torch.fft.irfft(frequencies * self.filter, n=x.shape[1], dim=1)
        return x + self.down(F.gelu(self.up(torch.fft.fft2(x).real)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

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
    return (torch.randn(4, 16, 32, generator=generator),)
