"""GRU of torch.nn over a sequence, two layers, and a head on every step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(64, 16)
        self.recurrent = nn.GRU(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        states, _ = self.recurrent(self.token(tokens))
        return F.cross_entropy(self.head(states)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randint(64, (4, 4), generator=generator),)
