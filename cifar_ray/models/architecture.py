"""What the registry holds of a model: how it is built, how it is trained unless asked otherwise, and its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import DatasetSpec


@dataclass(frozen=True)
class Recipe:
    """Documented defaults of one model with one optimizer, each under the name of its ``TrainConfig`` field."""

    optimizer: Literal["sgd", "adamw"]
    lr: float
    weight_decay: float
    warmup_epochs: float
    base_batch: int = 128
    momentum: float = 0.9
    schedule: Literal["cosine", "constant"] = "cosine"
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class Architecture:
    """One entry of the registry.

    Attributes:
        recipes: one for each optimizer that has been tried, first that of the model's own.
        layers: takes such a model apart, by default a ``Sequential`` into its children.
    """

    build: Callable[[TrainConfig, DatasetSpec], nn.Module]
    recipes: tuple[Recipe, ...]
    layers: Callable[[Any], list[nn.Module]] = list
