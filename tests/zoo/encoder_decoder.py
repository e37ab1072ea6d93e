"""Encoder and decoder: every decoder layer reads the encoder's output."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(64, 32), nn.Embedding(64, 32)
        make = {"d_model": 32, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(norm_first=True, **make) for _ in range(1))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(norm_first=True, **make) for _ in range(2))
        self.head = nn.Linear(32, 64)

    def forward(self, source, target):
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.target(target)
        mask = torch.full((target.shape[1],) * 2, float("-inf"), device=target.device).triu(1)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=mask)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), target[:, 1:].flatten())


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (
        torch.randint(64, (2, 16), generator=generator),
        torch.randint(64, (2, 8), generator=generator),
    )
