"""A Llama-like decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB, HEAD = 1024, 32


def build_model(mesh: object, *, layers: int = 4, hidden: int = 256, sequence: int = 256) -> nn.Module:
    return Llama(layers, hidden, sequence)


def example_inputs(*, micro_batch: int = 2, sequence: int = 256) -> tuple[Tensor]:
    return batch(0, 0, 0, micro_batch=micro_batch, sequence=sequence)


def batch(step: int, microbatch: int, dp_rank: int, *, micro_batch: int = 2, sequence: int = 256) -> tuple[Tensor]:
    generator = torch.Generator().manual_seed(step * 1009 + microbatch * 101 + dp_rank)
    return (torch.randint(0, VOCAB, (micro_batch, sequence), generator=generator),)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(hidden), RMSNorm(hidden)
        self.query, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(hidden, hidden // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * hidden, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norm1(x)
        query, key, value = (
            part(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        key, value = (part.repeat_interleave(2, 1) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers: int, hidden: int, sequence: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, hidden)
        self.layers = nn.ModuleList(Block(hidden) for _ in range(layers))
        self.norm, self.head = RMSNorm(hidden), nn.Linear(hidden, VOCAB, bias=False)
        angles = torch.outer(torch.arange(float(sequence)), 10000 ** -(torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
