"""RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(32), RMSNorm(32)
        self.q, self.k, self.v, self.o = (nn.Linear(32, width, bias=False) for width in (32, 16, 16, 32))
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((32, 96), (32, 96), (96, 32)))

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (part.repeat_interleave(2, 1) for part in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(128, 32)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = RMSNorm(32), nn.Linear(32, 128, bias=False)
        angles = torch.outer(torch.arange(24.0), 10000 ** -(torch.arange(0, 8, 2) / 8)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randint(128, (4, 24), generator=generator),)
