"""Small models that each show one thing to capture."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lynx_plan.model.graph import ModelSpec
from lynx_plan.torch_rt.capture import Captured, capture_module
from lynx_plan.torch_rt.model_file import plain_loss
from tests.torch_cpu.gpt_case import CPU


class Convolution(nn.Module):
    """Convolution, batch norm (buffers change), dropout, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.norm(self.convolution(x)).relu(), 0.5)
        return self.linear(x.mean((2, 3))).pow(2).mean()


class Tied(nn.Module):
    """One weight under two names, as embedding and as head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.embedding(tokens))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Views(nn.Module):
    """Every way to make a view, or what looks like one and is a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(8))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            a, b = block(x).chunk(2, -1)
            first, second = x.split((3, 5), -1)
            x = torch.cat((second[:, 1:].new_zeros(x.shape[0], 4), a * b), -1) + torch.cat((first, second), -1)
            x = x.t().reshape(-1).view(8, -1).t().contiguous()
            x = x + x.select(0, 0).expand_as(x).masked_fill(x > 100, 0) * self.frozen
        gathered = x[torch.arange(2, device=x.device)].squeeze().unsqueeze(0).transpose(0, 1).movedim(0, 1)
        return (gathered * self.scale).to(torch.float64).float().sum() + torch.tensor(2.0)


def capture(model: nn.Module, *args: Tensor) -> Captured:
    spec = ModelSpec(path=__file__)
    return capture_module(model, args, plain_loss, spec=spec, mesh=None, mesh_shape=(), machine=CPU)
