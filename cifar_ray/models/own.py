"""Models of the user's own: ``--model MODULE:FUNCTION`` names a function that builds one.

The function is called as ``build(image_size, channels, classes, **options)`` and returns an ``nn.Module`` that maps
float32 images (B, C, H, W) to logits (B, classes); for rows of numbers as ``build(features, classes)``, for texts as
``build(vocabulary, length, classes)``. It should draw its weights from torch's global generator, which is
seeded alike on every worker.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from cifar_ray.config import imports, option
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.option import SIZED, is_function, library_of
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

_checked: dict[tuple[object, ...], dict[str, str]] = {}
_in_stages: set[tuple[object, ...]] = set()


def architecture(path: str) -> Architecture:
    """The registry's entry for the function ``path``."""
    return Architecture(build, RECIPES, functools.partial(_layers, path))


def build(config: TrainConfig, spec: Facts) -> nn.Module:
    """What the user's function, or a library's, returns for the data set.

    Raises:
        ConfigError: when it cannot be called, fails, or returns no module, or when its file is no longer the one that
            the run began with.
    """
    builder = function(config, spec)
    with imports.calling(config.model, "model", "must build a model"):
        model = builder(*modality.of(spec).sizes, **config.model_options)
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"must return an nn.Module, and {config.model} returns {brief(model)}")
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise ConfigError("model", f"must know its sizes when it is built, and {config.model} has lazy layers")
    for module in model.modules():  # views, such as those of torch.meshgrid, can be neither loaded nor sent
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.contiguous())
    return model


def function(config: TrainConfig, spec: Facts) -> Callable[..., Any]:
    """The user's function, or a library's, that builds the model for the data set's sizes.

    Raises:
        ConfigError: when it is called in another way, such as one of torchvision's.
    """
    if library_of(config.model):
        return libraries.builder(config.model)
    imports.check_source(config, "model")
    builder, names = imports.load(config.model, "model"), ", ".join(modality.of(spec).arguments)
    try:
        inspect.signature(builder).bind_partial(*modality.of(spec).sizes)
    except ValueError:  # a callable without a signature
        pass
    except TypeError:
        raise ConfigError(
            "model",
            f"must be a function that takes ({names}), and {config.model} does not; write one that calls it, such as: "
            f"def build({names}): return "
            f"{config.model.rpartition(':')[2]}(num_classes=classes)",
        ) from None
    return builder


def check(config: TrainConfig, spec: Facts, wanted: tuple[int, ...]) -> None:
    """Build the model and try it on two samples, once in a process; torch's generator is left as it was.

    Raises:
        ConfigError: as :func:`build`, and when it has nothing to learn or gives no logits (2, ``*wanted``).
    """
    if is_function(config.model):
        imports.check_source(config, "model")
    key = _key(config, spec)
    if key in _checked:
        return
    shape = ", ".join(map(str, spec.shape))
    rule = f"must give float logits (B, {', '.join(map(str, wanted))}) for {spec.inputs} (B, {shape})"
    if library_of(config.model) and option.chosen(config.dataset) in SIZED:
        rule += ", whose side is --image-size"
    with torch.random.fork_rng(devices=[]):
        model = build(config, spec)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError("model", f"must have weights to learn, and that of {config.model} has none")
        if extra := next((name for name, value in model.state_dict().items() if not isinstance(value, Tensor)), ""):
            raise ConfigError("model", f"must keep its state in buffers (register_buffer); {config.model} has {extra}")
        with imports.calling(config.model, "model", rule):
            with torch.no_grad():
                outputs = [model.eval()(modality.of(spec).example(2))]
            outputs.append(model.train()(modality.of(spec).example(2)))
            for logits in outputs:
                is_float = isinstance(logits, Tensor) and logits.is_floating_point()
                if not is_float or logits.shape != (2, *wanted):
                    kind = f"shape {tuple(logits.shape)}" if is_float else f"a {type(logits).__name__}"
                    raise ConfigError("model", f"{rule}, and {config.model} gives {kind} for 2 {spec.inputs}")
            _checked[key] = _traits(model, spec)


def _key(config: TrainConfig, spec: Facts) -> tuple[object, ...]:
    return (config.model, config.model_source, config.task, spec, *sorted(config.model_options.items()))


def check_strategy(config: TrainConfig, spec: Facts, cannot: frozenset[str]) -> None:
    """Refuse a model that :func:`check` has accepted, with one of :data:`TRAITS` that the strategy ``cannot`` train."""
    for trait, name in _checked[_key(config, spec)].items():
        if trait in cannot:
            raise ConfigError(
                "strategy", f"must be other than {config.strategy} for {config.model}, {TRAITS[trait].format(name)}"
            )


def check_float32(config: TrainConfig, spec: Facts, field: str, value: str) -> None:
    """Refuse ``value`` for a model that :func:`check` has accepted and that has a parameter of another type."""
    if name := _checked[_key(config, spec)].get("dtype"):
        raise ConfigError(field, f"must be other than {value} for {config.model}, {TRAITS['dtype'].format(name)}")


def _traits(model: nn.Module, spec: Facts) -> dict[str, str]:
    """Those of :data:`TRAITS` that a training pass shows, with the name of the first parameter, buffer or layer."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    passes: Counter[str] = Counter()
    for name, norm in norms.items():
        norm.register_forward_hook(lambda *_, name=name: passes.update([name]))
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if name.rpartition(".")[0] not in norms}
    model.train()(modality.of(spec).example(2)).sum().backward()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    found = {
        "scalar": [name for name, parameter in parameters.items() if parameter.ndim == 0],
        "dtype": [name for name, parameter in parameters.items() if parameter.dtype != torch.float32],
        "unused": [
            name for name, parameter in parameters.items() if parameter.requires_grad and parameter.grad is None
        ],
        "counted": [name for name, buffer in before.items() if not torch.equal(buffers[name], buffer)],
        "repeated": [name for name, count in passes.items() if count > 1],
    }
    return {trait: names[0] for trait, names in found.items() if names}


def check_layers(config: TrainConfig, spec: Facts, units: Callable[[nn.Module], list[nn.Module]]) -> None:
    """Refuse a model whose ``units``, one after the other, are not its forward pass to the last bit, or share weights.

    Once in a process, in training mode.

    Raises:
        ConfigError: naming the strategy.
    """
    if _key(config, spec) in _in_stages:
        return
    rule = f"must be other than {config.strategy} for {config.model},"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = build(config, spec).train()
        whole, made, inputs, results = copy.deepcopy(model), units(model), modality.of(spec).example(4), []
        held = [id(parameter) for unit in made for parameter in unit.parameters()]
        if len(held) > len({*held}):
            raise ConfigError("strategy", f"{rule} two of whose layers share weights that two stages would each train")
        for called in (whole, nn.Sequential(*made)):
            torch.manual_seed(0)
            with imports.calling(config.model, "model", "must be its stages(), one after the other"):
                results.append(called(inputs.clone()))
    if not isinstance(results[1], Tensor) or not torch.equal(*results):
        raise ConfigError("strategy", f"{rule} whose stages(), one after the other, are not its forward pass")
    _in_stages.add(_key(config, spec))


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
    with imports.calling(path, "model", "must list its layers in stages()"):
        listed = list(stages())
    if not all(isinstance(layer, nn.Module) for layer in listed):
        raise ConfigError("model", f"must list modules in stages(), and {path} lists something else")
    return listed
