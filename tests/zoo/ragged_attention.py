"""Packed sequences: segment masks from integer inputs, masked attention, masked loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, allowed):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return x + self.out(attended.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens, segments):
        place = torch.arange(tokens.shape[1], device=tokens.device)
        allowed = (segments[:, :, None] == segments[:, None]) & (place[:, None] >= place)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, allowed[:, None])
        targets = tokens.masked_fill(segments == 0, -100)
        return F.cross_entropy((x @ self.embedding.weight.t()).flatten(0, 1), targets.flatten())


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (
        torch.randint(64, (2, 24), generator=generator),
        torch.randint(3, (2, 24), generator=generator).sort(-1).values,
    )
