"""Architectures by name, each with the recipes that train it."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

from cifar_ray.config import imports, keywords
from cifar_ray.config.model import ModelName
from cifar_ray.config.option import is_function, is_own

if TYPE_CHECKING:
    from torch import nn

    from cifar_ray.config.train import ResolvedConfig, TrainConfig
    from cifar_ray.data import Facts
    from cifar_ray.models.architecture import Architecture, Recipe


@functools.cache
def registry() -> dict[str, Architecture]:
    """Every name of ``ModelName`` with the ``MODEL`` of the file of that name; this loads torch."""
    return {name: import_module(f"cifar_ray.models.{name}").MODEL for name in get_args(ModelName)}


def of(model: str) -> Architecture:
    """The entry of ``--model``."""
    if is_own(model):
        from cifar_ray.models import own

        return own.architecture(model)
    return registry()[model]


def build(config: TrainConfig, spec: Facts) -> nn.Module:
    """The configured model with fresh weights from torch's global generator.

    It maps a batch of inputs, such as float32 images (B, C, H, W), to float numbers (B, num_classes), or for masks (B,
    num_classes, H, W).
    """
    from cifar_ray.data import modality

    if is_function(config.model):
        imports.check_source(config, "model")
    entry = of(config.model)
    network = entry.build(*modality.of(spec).sizes, **config.model_options)
    return network if entry.adapt is None else entry.adapt(network, config, spec)


def complete(config: TrainConfig, spec: Facts) -> dict[str, Any]:
    """The model's options: those that are given, checked, and the defaults of the others.

    Raises:
        ConfigError: naming an option that the model does not have, or a value that it cannot have.
    """
    from cifar_ray.data import modality

    if is_own(config.model):
        from cifar_ray.models import own

        function = own.function(config.model)
    else:
        function = of(config.model).build
    sizes = len(modality.of(spec).sizes)
    return keywords.complete("model_options", config.model, function, sizes, config.model_options)


def outline(config: TrainConfig, spec: Facts) -> nn.Module:
    """The configured model for a look at its shapes; torch's generator is left as it was.

    It is on the meta device, where it takes no memory; a user's own, whose function may compute, is on the CPU.
    """
    import torch

    with torch.random.fork_rng(devices=[]) if is_own(config.model) else torch.device("meta"):
        return build(config, spec)


def recipe(config: ResolvedConfig) -> Recipe | None:
    """The model's recipe for the optimizer of a resolved config; None when there is none for it."""
    return next((each for each in of(config.model).recipes if each.optimizer == config.optimizer), None)


def layers(config: TrainConfig, model: nn.Module) -> list[nn.Module]:
    """The layers of a ``model`` that :func:`build` made, in order; one after the other they are its forward pass.

    They consist of the model's own modules and parameters, each in one of them, and change nothing in the model.
    A layer without parameters may work in place on what the one before it gives.
    """
    return of(config.model).layers(model)
