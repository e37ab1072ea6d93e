"""Two towers, normalised features, a learned temperature, the loss of both directions (CLIP)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, 64), nn.Linear(64, 64), nn.Linear(64, 32)])

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(F.gelu(x) if number else x)
        return F.normalize(x, dim=-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images, self.texts = Tower(48), Tower(24)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, texts):
        logits = self.temperature.exp() * self.images(images) @ self.texts(texts).t()
        labels = torch.arange(len(images), device=images.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(16, 48, generator=generator), torch.randn(16, 24, generator=generator))
