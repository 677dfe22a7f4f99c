"""Simple CNN: two small convolutions, two linear layers; no batch norm.

Source: Rangoju and Katneni 2025, "simple CNN", which does not state padding or activation; 'same' padding and ReLU are
taken here.
"""

from __future__ import annotations

from torch import nn

from cifar_ray.models.architecture import Architecture, Recipe, convolutions

RECIPES = (
    Recipe(optimizer="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=0.5),
    Recipe(optimizer="adamw", lr=3e-3, weight_decay=0.05, warmup_epochs=0.5),
)


def build(image_size: int, channels: int, classes: int) -> nn.Module:
    """The network for this image size and these channels and classes."""
    side = image_size // 4
    return nn.Sequential(
        *convolutions([channels, 4], has_norm=False),
        nn.MaxPool2d(2),
        *convolutions([4, 8], has_norm=False),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * side * side, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


MODEL = Architecture(build, RECIPES)
