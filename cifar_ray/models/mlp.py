"""A multilayer perceptron for rows of numbers: fully connected layers with ReLU, and norm and dropout if asked for."""

from __future__ import annotations

from torch import nn

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import DatasetSpec
from cifar_ray.models.architecture import Recipe

RECIPES = (Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.01, warmup_epochs=0.5, base_batch=32),)

_NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def build(config: TrainConfig, spec: DatasetSpec) -> nn.Sequential:
    """Maps float32 rows (B, length) to (B, num_classes); a ``Sequential`` of layers."""
    options, size = config.mlp, spec.length
    layers: list[nn.Module] = []
    for _ in range(options.depth):
        layers.append(nn.Linear(size, options.width))
        if options.norm != "none":
            layers.append(_NORMS[options.norm](options.width))
        layers.append(nn.ReLU())
        if options.dropout:
            layers.append(nn.Dropout(options.dropout))
        size = options.width
    return nn.Sequential(*layers, nn.Linear(size, spec.num_classes))
