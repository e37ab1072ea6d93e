"""A residual convolutional network: BatchNorm, in-place ReLU, strides."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 100


def build_model(mesh: object, *, width: int = 32, blocks: int = 6) -> nn.Module:
    return ResNet(width, blocks)


def example_inputs(*, micro_batch: int = 8, side: int = 64) -> tuple[Tensor, Tensor]:
    return batch(0, 0, 0, micro_batch=micro_batch, side=side)


def batch(step: int, microbatch: int, dp_rank: int, *, micro_batch: int = 8, side: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step * 1009 + microbatch * 101 + dp_rank)
    images = torch.randn(micro_batch, 3, side, side, generator=generator)
    return images, torch.randint(0, CLASSES, (micro_batch,), generator=generator)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)
