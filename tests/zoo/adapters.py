"""Case adapters: embedding and base frozen, rank-4 adapters, integer input."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Adapted(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, out).requires_grad_(False)
        self.a = nn.Linear(width, 4, bias=False)
        self.b = nn.Linear(4, out, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128).requires_grad_(False)
        self.up, self.down = Adapted(128, 128), Adapted(128, 128)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 128).requires_grad_(False)
        self.frozen = nn.ModuleList(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(2)).requires_grad_(
            False
        )
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(128, 100, bias=False).requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.frozen:
            x = x + block(x)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randint(100, (4, 64), generator=generator),)
