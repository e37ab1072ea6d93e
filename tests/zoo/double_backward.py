"""A gradient penalty: the loss holds a gradient by torch.autograd.grad."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 1)])

    def forward(self, x):
        x = x.detach().requires_grad_()
        y = x
        for number, layer in enumerate(self.layers):
            y = layer(F.softplus(y) if number else y)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.square().mean() + (slope.norm(dim=-1) - 1).square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(8, 16, generator=generator),)
