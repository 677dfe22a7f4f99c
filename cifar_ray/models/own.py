"""Models of the user's own: ``--model MODULE:FUNCTION`` names a function that builds one.

The function is called as ``build(image_size, channels, classes, **options)`` and returns an ``nn.Module`` that maps
float32 images (B, C, H, W) to logits (B, classes). It should draw its weights from torch's global generator, which is
seeded alike on every worker.
"""

from __future__ import annotations

import functools
import inspect

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import DatasetSpec
from cifar_ray.models.architecture import Architecture, Recipe

RECIPES = (
    Recipe(optimizer="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=0.5),
    Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.05, warmup_epochs=0.5),
)
"""Usual choices, found for none of these models in particular."""

_checked: set[tuple[object, ...]] = set()


def architecture(path: str) -> Architecture:
    """The registry's entry for the function ``path``."""
    return Architecture(build, RECIPES, functools.partial(_layers, path))


def build(config: TrainConfig, spec: DatasetSpec) -> nn.Module:
    """What the user's function returns for the data set.

    Raises:
        ConfigError: when it cannot be called, fails, or returns no module, or when its file is no longer the one that
            the run began with.
    """
    imports.check_source(config, "model")
    function = imports.load(config.model, "model")
    sizes = (spec.image_size, spec.channels, spec.num_classes)
    try:
        inspect.signature(function).bind(*sizes, **config.model_options)
    except TypeError as error:
        raise ConfigError(
            "model_options", f"must fit {config.model}(image_size, channels, classes, ...): {error}"
        ) from None
    except ValueError:  # a callable without a signature
        pass
    try:
        model = function(*sizes, **config.model_options)
    except (Exception, SystemExit) as error:
        raise ConfigError("model", f"must build a model, and {config.model} fails: {imports.told(error)}") from None
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"must return an nn.Module, and {config.model} returns {brief(model)}")
    return model


def check(config: TrainConfig, spec: DatasetSpec) -> None:
    """Build the model and try it on two images, once in a process; torch's generator is left as it was.

    Raises:
        ConfigError: as :func:`build`, and when it has nothing to learn or gives no logits (2, classes).
    """
    imports.check_source(config, "model")
    key = (config.model, config.model_source, spec, *sorted(config.model_options.items()))
    if key in _checked:
        return
    with torch.random.fork_rng(devices=[]):
        model = build(config, spec)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError("model", f"must have weights to learn, and that of {config.model} has none")
        images = torch.zeros(2, spec.channels, spec.image_size, spec.image_size)
        shape = ", ".join(map(str, images.shape[1:]))
        wanted = f"must give float logits (B, {spec.num_classes}) for images (B, {shape})"
        try:
            with torch.no_grad():
                logits = model.eval()(images)
            learned = model.train()(images)
            if isinstance(learned, Tensor):
                learned.sum().backward()  # type: ignore[no-untyped-call]
        except (Exception, SystemExit) as error:
            raise ConfigError("model", f"{wanted}, and {config.model} fails: {imports.told(error)}") from None
        if any(isinstance(each, UninitializedParameter) for each in build(config, spec).parameters()):
            raise ConfigError("model", f"must know its sizes when it is built, and {config.model} has lazy layers")
        unused = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
        if isinstance(learned, Tensor) and unused:
            raise ConfigError("model", f"must use all weights that learn, and {config.model} does not use {unused[0]}")
    logits = logits if isinstance(learned, Tensor) else learned
    if not isinstance(logits, Tensor) or logits.shape != (2, spec.num_classes) or not logits.is_floating_point():
        is_float = isinstance(logits, Tensor) and logits.is_floating_point()
        given = f"shape {tuple(logits.shape)}" if is_float else f"a {type(logits).__name__}"
        raise ConfigError("model", f"{wanted}, and {config.model} gives {given} for 2 images")
    _checked.add(key)


def _layers(path: str, model: nn.Module) -> list[nn.Module]:
    """The children of a ``Sequential``, or what the model's ``stages()`` lists."""
    if isinstance(model, nn.Sequential):
        return list(model)
    stages = getattr(model, "stages", None)
    if not callable(stages):
        raise ConfigError(
            "strategy",
            f"must keep the model whole for --model {path}, which is no nn.Sequential and has no stages() that lists "
            "its layers in order",
        )
    return list(stages())
