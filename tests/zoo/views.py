"""Case views: fused QKV and chunk, `+=` residuals, slices assigned into a tensor of zeros."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.qkv = nn.Linear(128, 384)
        self.out = nn.Linear(128, 128)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 32)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v)
        both = torch.zeros_like(x)
        both[..., :64] = attended[:, :2].transpose(1, 2).flatten(2)
        both[..., 64:] = attended[:, 2:].transpose(1, 2).flatten(2)
        y = self.out(both)
        y += x
        return y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(2, 16, 128, generator=generator),)
