"""Selective state space: input-dependent gates and a scan written as a loop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.into, self.out = nn.Linear(16, 64), nn.Linear(32, 16)
        self.convolution = nn.Conv1d(32, 32, 3, groups=32, padding=2)
        self.parameters_of_x = nn.Linear(32, 1 + 2 * 4)
        self.a_log = nn.Parameter(torch.arange(1.0, 5.0).log().repeat(32, 1))
        self.d = nn.Parameter(torch.ones(32))

    def forward(self, x):
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(self.convolution(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = self.parameters_of_x(u).split((1, 4, 4), -1)
        decay = torch.exp(F.softplus(step)[..., None] * -self.a_log.exp())
        state, outputs = torch.zeros_like(decay[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + u[:, t, :, None] * b[:, t, None]
            outputs.append((state * c[:, t, None]).sum(-1))
        return x + self.out((torch.stack(outputs, 1) + self.d * u) * F.silu(gate))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

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
    return (torch.randn(2, 4, 16, generator=generator),)
