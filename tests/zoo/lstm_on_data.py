"""LSTM directly on data that needs no gradient, where tracing would take the CPU's fused kernel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        states, (last, _) = self.recurrent(x)
        return self.head(F.relu(states)).square().mean() + last.square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(4, 4, 8, generator=generator),)
