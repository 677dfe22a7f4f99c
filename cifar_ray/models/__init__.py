"""Architectures by name, each with the recipes that train it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from cifar_ray.config import keywords
from cifar_ray.config.option import is_own

if TYPE_CHECKING:
    from torch import nn

    from cifar_ray.config.train import ResolvedConfig, TrainConfig
    from cifar_ray.data import DatasetSpec
    from cifar_ray.models.architecture import Architecture, Recipe


@functools.cache
def registry() -> dict[str, Architecture]:
    """The entry of every name; this loads torch."""
    from cifar_ray.models import (
        lstm,
        mlp,
        resnet,
        resnet50,
        segnet,
        simple_cnn,
        speednet,
        text_network,
        text_transformer,
        textcnn,
        unet,
        vgg11,
        vit,
    )
    from cifar_ray.models.architecture import Architecture, whole

    return {
        "simple_cnn": Architecture(simple_cnn.build, simple_cnn.RECIPES),
        "resnet": Architecture(resnet.build, resnet.RECIPES),
        "resnet18": Architecture(resnet.build_resnet18, resnet.RECIPES),
        "resnet50": Architecture(resnet50.build, resnet50.RECIPES, resnet50.layers),
        "vgg11": Architecture(vgg11.build, vgg11.RECIPES),
        "speednet": Architecture(
            speednet.build,
            speednet.RECIPES,
            prepare=speednet.whiten,
            adapt=speednet.mirrored,
            variation=speednet.VARIATION,
        ),
        "vit": Architecture(vit.build, vit.RECIPES, vit.layers),
        "unet": Architecture(unet.build, unet.RECIPES, whole("unet"), has_masks=True),
        "segnet": Architecture(segnet.build, segnet.RECIPES, whole("segnet"), has_masks=True),
        "textcnn": Architecture(textcnn.build, textcnn.RECIPES, text_network.layers, inputs="tokens"),
        "lstm": Architecture(lstm.build, lstm.RECIPES, text_network.layers, inputs="tokens"),
        "text_transformer": Architecture(
            text_transformer.build, text_transformer.RECIPES, text_network.layers, inputs="tokens"
        ),
        "mlp": Architecture(mlp.build, mlp.RECIPES, inputs="features"),
    }


def of(model: str) -> Architecture:
    """The entry of ``--model``."""
    if is_own(model):
        from cifar_ray.models import own

        return own.architecture(model)
    return registry()[model]


def build(config: TrainConfig, spec: DatasetSpec) -> nn.Module:
    """The configured model with fresh weights from torch's global generator.

    It maps a batch of inputs, such as float32 images (B, C, H, W), to float numbers (B, num_classes), or for masks (B,
    num_classes, H, W).
    """
    if is_own(config.model):
        from cifar_ray.models import own

        return own.build(config, spec)
    entry = of(config.model)
    network = entry.build(*spec.sizes.values(), **config.model_options)
    return network if entry.adapt is None else entry.adapt(network, config, spec)


def complete(config: TrainConfig, spec: DatasetSpec) -> dict[str, Any]:
    """The model's options: those that are given, checked, and the defaults of the others.

    Raises:
        ConfigError: naming an option that the model does not have, or a value that it cannot have.
    """
    if is_own(config.model):
        from cifar_ray.models import own

        function = own.function(config, spec)
    else:
        function = of(config.model).build
    return keywords.complete("model_options", config.model, function, len(spec.sizes), config.model_options)


def outline(config: TrainConfig, spec: DatasetSpec) -> nn.Module:
    """The configured model for a look at its shapes; torch's generator is left as it was.

    It is on the meta device, where it takes no memory; a user's own, whose function may compute, is on the CPU.
    """
    import torch

    if is_own(config.model):
        with torch.random.fork_rng(devices=[]):
            return build(config, spec)
    with torch.device("meta"):
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
