"""Recommendation: embedding bags, dot products of all pairs of features, two MLPs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 16, mode=mode) for mode in ("sum", "mean"))
        self.bottom = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 3, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("pairs", torch.tensor([[1, 2, 2], [0, 0, 1]]))

    def forward(self, dense, one, other, clicked):
        features = torch.stack([self.bottom(dense), self.bags[0](one), self.bags[1](other)], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat((features[:, 0], products), 1))[:, 0], clicked)


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (
        torch.randn(16, 8, generator=generator),
        torch.randint(50, (16, 4), generator=generator),
        torch.randint(50, (16, 3), generator=generator),
        torch.randint(2, (16,), generator=generator).float(),
    )
