"""ResNet of BasicBlocks for small images, of configurable depth and width.

Sources: He et al. 2015, "Deep Residual Learning for Image Recognition" (BasicBlock, initial weights); Rangoju and
Katneni 2025, "deep CNN": 3x3 stem with batch norm, stages of growing filters, global average pool, linear.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from cifar_ray.config.schema import Count, Counts
from cifar_ray.models.architecture import Architecture, Recipe, convolutions, initialise

RECIPES = (
    Recipe(optimizer="sgd", lr=0.1, weight_decay=5e-4, warmup_epochs=1.0),
    Recipe(optimizer="adamw", lr=3e-3, weight_decay=0.05, warmup_epochs=1.0),
)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut; (B, C, H, W) to (B, filters, H/stride, W/stride)."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


Blocks = Annotated[Counts, "BasicBlocks in each stage. Each after the first halves the image and doubles the filters"]
Width = Annotated[Count, "Filters of the stem and of the first stage"]


def build(
    image_size: int, channels: int, classes: int, *, blocks: Blocks = (1, 1, 1, 1), width: Width = 16
) -> nn.Sequential:
    """The network as a flat sequence of blocks; its keywords are its options."""
    layers = convolutions([channels, width])
    filters = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            channels, filters = filters, width * 2**stage
            layers.append(BasicBlock(channels, filters, stride=2 if stage > 0 and block == 0 else 1))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(filters, classes)]
    network = nn.Sequential(*layers)
    initialise(network, "fan_out")
    return network


MODEL = Architecture(build, RECIPES)
