"""What the registry holds of a model: how it is built, how it is trained unless asked otherwise, and its layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.facts import Inputs
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Facts
from cifar_ray.data.augment import USUAL, Variation


@dataclass(frozen=True)
class Recipe:
    """How one model is trained with one optimizer: defaults, each under the name of its ``TrainConfig`` field.

    Attributes:
        norm_bias_lr: learning rate of batch norms' biases, as a multiple of the others'; no field of ``TrainConfig``.
        lookahead: whether the weights are drawn to their own moving average every few steps; no field either.
    """

    optimizer: Literal["sgd", "adamw"]
    lr: float
    weight_decay: float
    warmup_epochs: float
    base_batch: int = 128
    momentum: float = 0.9
    schedule: Literal["cosine", "constant", "triangle"] = "cosine"
    label_smoothing: float = 0.0
    norm_bias_lr: float = 1.0
    lookahead: bool = False


@dataclass(frozen=True)
class Architecture:
    """One entry of the registry.

    Attributes:
        build: called with the data set's sizes, such as (image_size, channels, classes), and the model's options.
        recipes: one for each optimizer that has been tried, first that of the model's own.
        layers: takes such a model apart, by default a ``Sequential`` into its children.
        prepare: sets weights that follow from the training inputs, given the model and the first of those as it takes
            them; None when all are random.
        adapt: changes the network as a run's augmentation asks for; None when it stays.
        variation: how its training images vary.
        inputs: the kind that it takes, as :data:`~cifar_ray.data.datasets.INPUTS` lists them.
        has_masks: whether it gives logits for each pixel, (B, num_classes, H, W), in place of (B, num_classes).
    """

    build: Callable[..., nn.Module]
    recipes: tuple[Recipe, ...]
    layers: Callable[[Any], list[nn.Module]] = list
    prepare: Callable[[nn.Module, Tensor], None] | None = None
    adapt: Callable[[nn.Module, TrainConfig, Facts], nn.Module] | None = None
    variation: Variation = USUAL
    has_masks: bool = False
    inputs: Inputs = "images"


def whole(model: nn.Module) -> list[nn.Module]:
    """Refuse to take apart a model whose later layers use what several earlier ones gave."""
    rule = f"must keep the model whole for --model {type(model).__name__.lower()}"
    raise ConfigError("strategy", f"{rule}, whose decoder uses the output of every encoder level")


def convolutions(channels: Sequence[int], has_norm: bool = True) -> list[nn.Module]:
    """3x3 convolutions from each number of channels to the next, with batch norm unless they have biases, and ReLU."""
    layers: list[nn.Module] = []
    for inputs, filters in itertools.pairwise(channels):
        layers.append(nn.Conv2d(inputs, filters, 3, padding=1, bias=not has_norm))
        if has_norm:
            layers.append(nn.BatchNorm2d(filters))
        layers.append(nn.ReLU())
    return layers


def initialise(network: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_in") -> None:
    """Draw the weights of convolutions before ReLU (He et al. 2015), and set their biases to 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # drawing nothing would import torch's compiler
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
