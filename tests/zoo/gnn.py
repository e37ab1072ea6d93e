"""Message passing: gather by edge, index_add to nodes, attention over edges by scatter_reduce."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.own, self.score = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, nodes, source, target):
        messages = self.message(nodes[source])
        scores = self.score(torch.tanh(messages))[:, 0]
        top = torch.zeros(len(nodes), device=nodes.device).scatter_reduce(0, target, scores.detach(), "amax")
        weights = (scores - top[target]).exp()
        total = torch.zeros(len(nodes), device=nodes.device).index_add(0, target, weights)
        weights = weights / total[target].clamp_min(1e-6)
        return F.relu(self.own(nodes) + torch.zeros_like(nodes).index_add(0, target, weights[:, None] * messages))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, nodes, edges):
        for layer in self.layers:
            nodes = layer(nodes, edges[0], edges[1])
        return nodes.square().mean()


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(24, 32, generator=generator), torch.randint(24, (2, 96), generator=generator))
