"""Cholesky, triangular solves, inverse, determinant and eigenvalues in the loss (Gaussian process)."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 8)])
        self.log_noise = nn.Parameter(torch.tensor(0.0))

    def forward(self, x, y):
        features = self.layers[1](torch.tanh(self.layers[0](x)))
        kernel = torch.exp(-torch.cdist(features, features).square() / 2)
        kernel = kernel + (self.log_noise.exp() + 0.1) * torch.eye(len(x), device=x.device)
        factor = torch.linalg.cholesky(kernel)
        solved = torch.cholesky_solve(y, factor)
        small = features.t() @ features + torch.eye(8, device=x.device)
        prior = (
            torch.linalg.slogdet(small)[1] + torch.linalg.eigvalsh(small).log().sum() + torch.linalg.inv(small).trace()
        )
        return (y * solved).sum() + 2 * factor.diagonal().log().sum() + prior


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(24, 8, generator=generator), torch.randn(24, 1, generator=generator))
