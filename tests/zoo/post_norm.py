"""Post-norm transformer encoder of torch.nn, with an additive mask and a classifier."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=False) for _ in range(3)
        )
        self.classifier = nn.Linear(32, 5)

    def forward(self, tokens, labels):
        x = self.token(tokens)
        mask = torch.full((tokens.shape[1],) * 2, float("-inf"), device=tokens.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return F.cross_entropy(self.classifier(x[:, -1]), labels)


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (
        torch.randint(64, (4, 16), generator=generator),
        torch.randint(5, (4,), generator=generator),
    )
