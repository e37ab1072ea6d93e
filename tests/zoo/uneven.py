"""Case uneven: blocks of width 128 and 512 in turns, a head to a large vocabulary."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, 64)
        widths = [128, 512] * 3 + [128]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64)) for width in widths
        )
        self.head = nn.Linear(64, vocab, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens % self.embedding.num_embeddings)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), (tokens % self.head.out_features)[:, 1:].flatten())


def build_model(mesh: object, vocab: int = 2000) -> nn.Module:
    return Model(vocab)


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randint(2**15, (2, 32), generator=generator),)
