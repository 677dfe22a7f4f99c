"""A multilayer perceptron for rows of numbers: fully connected layers with ReLU, and norm and dropout if asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

from cifar_ray.config.schema import Count, Share, Whole
from cifar_ray.models.architecture import Architecture, Recipe

RECIPES = (Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.01, warmup_epochs=0.5, base_batch=32),)

_NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def build(
    features: int,
    classes: int,
    *,
    width: Annotated[Count, "Units per hidden layer"] = 128,
    depth: Annotated[Whole, "Hidden layers; 0 is a linear model"] = 2,
    dropout: Annotated[Share, "Dropout rate of the hidden layers"] = 0.0,
    norm: Annotated[Literal["none", "batch", "layer"], "Norm before each ReLU"] = "none",
) -> nn.Sequential:
    """Maps float32 rows (B, features) to (B, classes); a ``Sequential`` of layers."""
    layers: list[nn.Module] = []
    size = features
    for _ in range(depth):
        layers.append(nn.Linear(size, width))
        if norm != "none":
            layers.append(_NORMS[norm](width))
        layers.append(nn.ReLU())
        if dropout:
            layers.append(nn.Dropout(dropout))
        size = width
    return nn.Sequential(*layers, nn.Linear(size, classes))


MODEL = Architecture(build, RECIPES, inputs="features")
