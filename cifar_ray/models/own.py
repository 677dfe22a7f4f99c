"""Models of the user's own: ``--model MODULE:FUNCTION`` names a function that builds one.

The function is called as ``build(image_size, channels, classes, **options)`` and returns an ``nn.Module`` that maps
float32 images (B, C, H, W) to logits (B, classes); for rows of numbers as ``build(features, classes)``, for texts as
``build(vocabulary, length, classes)``. It should draw its weights from torch's global generator, which is
seeded alike on every worker.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.option import is_function, library_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Facts, modality
from cifar_ray.models import libraries
from cifar_ray.models.architecture import Architecture, Recipe

RECIPES = (
    Recipe(optimizer="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=0.5),
    Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.05, warmup_epochs=0.5),
)
"""Usual choices, found for none of these models in particular."""

TRAITS = {
    "scalar": "whose parameter {} has no dimensions",
    "dtype": "whose parameter {} is not float32",
    "unused": "which does not use its parameter {} in every step",
    "counted": "which changes its buffer {} in every pass",
    "repeated": "in which an image passes the batch norm {} more than once",
}
"""What some strategies cannot train, in words; ``{}`` is the first that is so. Batch norm's own buffers may change."""

_tried: dict[str, dict[str, str]] = {}


def architecture(path: str) -> Architecture:
    """The registry's entry for the function ``path``; it is imported when the model is built."""
    return Architecture(functools.partial(build, path), RECIPES, functools.partial(_layers, path))


def function(path: str) -> Callable[..., Any]:
    """The user's function, or a library's, that builds the model."""
    return libraries.builder(path) if library_of(path) else imports.load(path, "model")


def build(path: str, *sizes: int, **options: Any) -> nn.Module:
    """What the function ``path`` returns for the data set's sizes.

    Raises:
        ConfigError: when it cannot be called so, fails, or returns no module whose sizes are all known.
    """
    builder = function(path)
    with imports.calling(path, "model", f"must build a model when called with {sizes}, the data set's sizes"):
        model = builder(*sizes, **options)
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"must return an nn.Module, and {path} returns {brief(model)}")
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise ConfigError("model", f"must know its sizes when it is built, and {path} has lazy layers")
    for module in model.modules():  # views, such as those of torch.meshgrid, can be neither loaded nor sent
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.contiguous())
    return model


def check(config: TrainConfig, spec: Facts, wanted: tuple[int, ...]) -> dict[str, str]:
    """Build the model and try it on two samples, once in a process; torch's generator is left as it was.

    Returns:
        Those of :data:`TRAITS` that it has, each with the name of the first parameter, buffer or layer.

    Raises:
        ConfigError: as :func:`build`, and when it gives no logits (2, ``*wanted``) from which its weights can learn.
    """
    if is_function(config.model):
        imports.check_source(config, "model")
    key = repr((config.model, config.model_source, config.model_options, spec, wanted))
    if key not in _tried:
        with torch.random.fork_rng(devices=[]):
            model = build(config.model, *modality.of(spec).sizes, **config.model_options)
            _tried[key] = _try(model, config.model, spec, wanted)
    return _tried[key]


def _try(model: nn.Module, path: str, spec: Facts, wanted: tuple[int, ...]) -> dict[str, str]:
    if extra := next((name for name, value in model.state_dict().items() if not isinstance(value, Tensor)), ""):
        raise ConfigError("model", f"must keep its state in buffers (register_buffer), and {path} has {extra}")
    inputs, outputs = (", ".join(map(str, ("B", *shape))) for shape in (spec.shape, wanted))
    rule = f"must give float logits ({outputs}) for {spec.inputs} ({inputs})"
    for training in (False, True, True):  # some leave out a parameter in every second pass
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with imports.calling(path, "model", rule):
            logits = model.train(training)(modality.of(spec).example(2))
        is_float = isinstance(logits, Tensor) and logits.is_floating_point()
        if not is_float or logits.shape != (2, *wanted):
            kind = f"shape {tuple(logits.shape)}" if is_float else f"a {type(logits).__name__}"
            raise ConfigError("model", f"{rule}, and {path} gives {kind} for 2 {spec.inputs}")
    with imports.calling(path, "model", "must have weights that learn from its logits"):
        logits.sum().backward()
    parameters, after = dict(model.named_parameters()), dict(model.named_buffers())
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    passes = {name: after[key] - before[key] for name in norms if (key := f"{name}.num_batches_tracked") in after}
    others = {name: buffer for name, buffer in before.items() if name.rpartition(".")[0] not in norms}
    found = {
        "scalar": [name for name, value in parameters.items() if value.ndim == 0],
        "dtype": [name for name, value in parameters.items() if value.dtype != torch.float32],
        "unused": [name for name, value in parameters.items() if value.requires_grad and value.grad is None],
        "counted": [name for name, buffer in others.items() if not torch.equal(after[name], buffer)],
        "repeated": [name for name, count in passes.items() if count > 1],
    }
    return {trait: names[0] for trait, names in found.items() if names}


def refuse(config: TrainConfig, key: str, cannot: Set[str], traits: Mapping[str, str]) -> None:
    """Refuse the value of option ``key`` with which a model ``cannot`` be trained that has these ``traits``."""
    for trait, name in traits.items():
        if trait in cannot:
            asked = getattr(config, key)
            raise ConfigError(key, f"must be other than {asked} for {config.model}, {TRAITS[trait].format(name)}")


def check_layers(config: TrainConfig, spec: Facts) -> None:
    """Refuse a model whose layers, one after the other, are not its forward pass to the last bit, or share weights."""
    results, kind = [], modality.of(spec)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model, inputs = build(config.model, *kind.sizes, **config.model_options).train(), kind.example(4)
        whole, layers = copy.deepcopy(model), _layers(config.model, model)
        with imports.calling(config.model, "model", "must be its stages(), one after the other"):
            for called in (whole, nn.Sequential(*layers)):
                torch.manual_seed(0)
                results.append(called(inputs.clone()))
            is_same = torch.equal(*results)
    held = [id(parameter) for layer in layers for parameter in layer.parameters()]
    rule = f"must be other than {config.strategy} for {config.model},"
    if len(held) > len({*held}):
        raise ConfigError("strategy", f"{rule} two of whose layers share weights that two stages would each train")
    if not is_same:
        raise ConfigError("strategy", f"{rule} whose stages(), one after the other, are not its forward pass")


def _layers(path: str, model: nn.Module) -> list[nn.Module]:
    """The children of a ``Sequential``, or what the model's ``stages()`` lists."""
    if isinstance(model, nn.Sequential):
        return list(model)
    stages: Any = getattr(model, "stages", None)
    if stages is None:
        problem = f"must keep the model whole for --model {path}, which is no nn.Sequential and has no stages()"
        raise ConfigError("strategy", problem)
    with imports.calling(path, "model", "must list its layers in stages()"):
        return list(stages())
