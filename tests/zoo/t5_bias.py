"""Attention written out, with one learned relative position bias that all layers share (T5)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32, bias=False), nn.LayerNorm(32, bias=False)
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x, bias):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) + bias).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.relative = nn.Embedding(64, 32), nn.Embedding(8, 4)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens):
        place = torch.arange(tokens.shape[1], device=tokens.device)
        distance = (place[None] - place[:, None]).clamp(-4, 3) + 4
        bias = self.relative(distance).permute(2, 0, 1)
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x, bias)
        return F.cross_entropy((x @ self.token.weight.t()).flatten(0, 1), tokens.flatten())


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randint(64, (4, 20), generator=generator),)
