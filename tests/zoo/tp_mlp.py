"""Case tp-mlp: column and row parallel MLP blocks, a functional all-reduce at the end of each."""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn import functional as F


class CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return functional.all_reduce(gradient, "sum", ctx.group), None


class SumOverGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return functional.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, group) -> None:
        super().__init__()
        self.group = group
        part = hidden // (group.size() if group else 1)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, part), nn.Linear(part, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        if self.group is None:
            return x + self.down(F.gelu(self.up(y)))
        y = self.down(F.gelu(self.up(CopyToGroup.apply(y, self.group))))
        return x + SumOverGroup.apply(y, self.group)


class Model(nn.Module):
    def __init__(self, group) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(256, 1024, group) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def build_model(mesh) -> nn.Module:
    return Model(mesh.get_group("tp") if mesh is not None else None)


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(4, 16, 256, generator=generator),)
