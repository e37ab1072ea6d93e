"""Variational autoencoder: random numbers in the middle, two terms in the loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2 * 64))
        self.decoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 128))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        noise = torch.randn_like(mean)
        decoded = self.decoder(mean + noise * (0.5 * log_variance).exp())
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return {"reconstruction": F.binary_cross_entropy_with_logits(decoded, x.sigmoid()), "divergence": divergence}


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(64, 128, generator=generator),)


def loss(output):
    return output["reconstruction"] + 0.01 * output["divergence"].mean()
