"""Gradients through where, clamp, gather, scatter, sort, top-k and max."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        y = self.linear(x)
        ordered, order = y.sort(-1)
        largest, places = y.topk(8, -1)
        back = torch.zeros_like(y).scatter(-1, order, ordered.clamp(-1, 1))
        back = back.scatter_add(-1, places, largest)
        taken = torch.where(y > 0, back, 0.1 * back) + y.gather(-1, order.flip(-1))
        return taken + y.amax(-1, keepdim=True) + y.max(-2, keepdim=True).values + torch.maximum(x, y)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = F.layer_norm(block(x), (32,))
        return x.square().mean() + x.abs().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(4, 16, 32, generator=generator),)
