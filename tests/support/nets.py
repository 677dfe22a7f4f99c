"""Models as users bring them, good ones and bad ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

A_NUMBER = 3


def build(
    image_size: int, channels: int, classes: int, width: int = 4, act: str = "relu", norm: bool = False
) -> nn.Module:
    """A small net, by default without batch norm."""
    return nn.Sequential(
        nn.BatchNorm2d(channels) if norm else nn.Identity(),
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.ReLU() if act == "relu" else nn.GELU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * (image_size // 4) ** 2, classes),
    )


class Whole(nn.Module):
    """A net that is no Sequential, and computes while it is built, which the meta device cannot."""

    def __init__(self, image_size: int, channels: int, classes: int) -> None:
        super().__init__()
        width = int(torch.linspace(2, 4, 2)[1].item())
        self.stem = nn.Conv2d(channels, width, 4, stride=4)
        self.head = nn.Linear(width * (image_size // 4) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stem(images).relu().flatten(1))


class Staged(Whole):
    """The same net, which can be taken apart."""

    def stages(self) -> list[nn.Module]:
        """The layers in order."""
        return [self.stem, nn.ReLU(), nn.Flatten(), self.head]


def no_module(image_size: int, channels: int, classes: int) -> Any:
    return "a net"


def too_many(image_size: int, channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes + 1))


def nothing_learns(image_size: int, channels: int, classes: int) -> nn.Module:
    return build(image_size, channels, classes).requires_grad_(False)


def wrong_input(image_size: int, channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))


def broken(image_size: int, channels: int, classes: int) -> nn.Module:
    raise KeyError("no weights")


class Tied(nn.Module):
    """A net that has one layer under two names."""

    def __init__(self, image_size: int, channels: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels * image_size**2, classes)
        self.layers = nn.Sequential(nn.Flatten(), self.head)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Unused(Tied):
    """A net with a layer that no image passes through."""

    def __init__(self, image_size: int, channels: int, classes: int) -> None:
        super().__init__(image_size, channels, classes)
        self.spare = nn.Linear(2, 2)


def lazy(image_size: int, channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def frozen(image_size: int, channels: int, classes: int) -> nn.Module:
    net = build(image_size, channels, classes)
    next(net.parameters()).requires_grad_(False)
    return net


class Failing(Tied):
    """A net that fails in a training step's forward pass, counted from 1, or in the evaluation."""

    def __init__(self, image_size: int, channels: int, classes: int, at: int) -> None:
        super().__init__(image_size, channels, classes)
        self.left = at

    def forward(self, images: Tensor) -> Tensor:
        is_tried = len(images) == 2  # before anything starts
        self.left -= self.training and not is_tried
        if not is_tried and (self.left == 0 or not self.training):
            raise ValueError("wrong")
        return super().forward(images)
