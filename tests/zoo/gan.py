"""Generator and discriminator in one step: two losses, one of them through a detached sample."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, noise, real):
        fake = self.generator(noise)
        judged_real, judged_fake = self.discriminator(real), self.discriminator(fake.detach())
        discriminator = F.softplus(-judged_real).mean() + F.softplus(judged_fake).mean()
        frozen = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        generator = F.softplus(-torch.func.functional_call(self.discriminator, frozen, fake)).mean()
        return discriminator, generator


def build_model(mesh: object) -> nn.Module:
    return Model()


def example_inputs() -> tuple[torch.Tensor, ...]:
    return batch(0, 0, 0)


def batch(step: int, microbatch: int, dp_rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return (torch.randn(16, 16, generator=generator), torch.randn(16, 32, generator=generator))


def loss(output):
    return output[0] + output[1]
