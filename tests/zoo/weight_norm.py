"""Parametrized weights: weight norm, and spectral norm with its buffers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                parametrizations.weight_norm(nn.Linear(32, 64)),
                parametrizations.spectral_norm(nn.Linear(64, 64)),
                parametrizations.weight_norm(nn.Conv1d(64, 32, 3, padding=1)),
            ]
        )

    def forward(self, x):
        x = F.elu(self.layers[0](x))
        x = F.elu(self.layers[1](x))
        return self.layers[2](x.transpose(1, 2)).square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(4, 16, 32, generator=generator),)
