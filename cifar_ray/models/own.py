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
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from cifar_ray.config import option
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.option import SIZED, is_function, library_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import DatasetSpec
from cifar_ray.models import libraries
from cifar_ray.models.architecture import Architecture, Recipe
from cifar_ray.tasks import imports

RECIPES = (
    Recipe(optimizer="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=0.5),
    Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.05, warmup_epochs=0.5),
)
"""Usual choices, found for none of these models in particular."""

_PASSES = 3
"""Training passes that a check takes, since one may leave out what another uses."""


@dataclass(frozen=True)
class Traits:
    """What a model has that some strategies cannot train: the name of the first, or nothing.

    Attributes:
        scalar: a parameter without dimensions.
        dtype: a parameter that is not float32.
        unused: a parameter that has no gradient after one of a few training passes.
        counted: a buffer that a training pass changes, beside batch norm's.
        repeated: a batch norm that a sample passes more than once.
    """

    scalar: str = ""
    dtype: str = ""
    unused: str = ""
    counted: str = ""
    repeated: str = ""


_SAID = {
    "scalar": "whose parameter {} has no dimensions",
    "dtype": "whose parameter {} is not float32",
    "unused": "which does not use its parameter {} in every step",
    "counted": "which changes its buffer {} in every pass",
    "repeated": "in which an image passes the batch norm {} more than once",
}

_checked: dict[tuple[object, ...], Traits] = {}
_compared: set[tuple[object, ...]] = set()


def architecture(path: str) -> Architecture:
    """The registry's entry for the function ``path``."""
    return Architecture(build, RECIPES, functools.partial(_layers, path))


def build(config: TrainConfig, spec: DatasetSpec) -> nn.Module:
    """What the user's function, or a library's, returns for the data set.

    Raises:
        ConfigError: when it cannot be called, fails, or returns no module, or when its file is no longer the one that
            the run began with.
    """
    builder = function(config, spec)
    with imports.calling(config.model, "model", "must build a model"):
        model = builder(*spec.sizes.values(), **config.model_options)
    if not isinstance(model, nn.Module):
        raise ConfigError("model", f"must return an nn.Module, and {config.model} returns {brief(model)}")
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise ConfigError("model", f"must know its sizes when it is built, and {config.model} has lazy layers")
    for module in model.modules():  # views, such as those of torch.meshgrid, can be neither loaded nor sent
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.contiguous())
    return model


def function(config: TrainConfig, spec: DatasetSpec) -> Callable[..., Any]:
    """The user's function, or a library's, that builds the model for the data set's sizes.

    Raises:
        ConfigError: when it is called in another way, such as one of torchvision's.
    """
    if library_of(config.model):
        return libraries.builder(config.model)
    imports.check_source(config, "model")
    builder, names = imports.load(config.model, "model"), ", ".join(spec.sizes)
    try:
        inspect.signature(builder).bind_partial(*spec.sizes.values())
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


def check(config: TrainConfig, spec: DatasetSpec, wanted: tuple[int, ...]) -> None:
    """Build the model and try it on a few samples, once in a process; torch's generator is left as it was.

    Raises:
        ConfigError: as :func:`build`, and when it has nothing to learn or gives no logits (2, ``*wanted``).
    """
    if is_function(config.model):
        imports.check_source(config, "model")
    key = _key(config, spec)
    if key in _checked:
        return
    shape = ", ".join(map(str, spec.input_shape))
    rule = f"must give float logits (B, {', '.join(map(str, wanted))}) for {spec.inputs} (B, {shape})"
    if library_of(config.model) and option.chosen(config.dataset) in SIZED:
        rule += ", whose side is --image-size"
    with torch.random.fork_rng(devices=[]):
        model = build(config, spec)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError("model", f"must have weights to learn, and that of {config.model} has none")
        with imports.calling(config.model, "model", rule):
            with torch.no_grad():
                outputs = [model.eval()(spec.example(2))]
            outputs.append(model.train()(spec.example(2)))
            for logits in outputs:
                is_float = isinstance(logits, Tensor) and logits.is_floating_point()
                if not is_float or logits.shape != (2, *wanted):
                    kind = f"shape {tuple(logits.shape)}" if is_float else f"a {type(logits).__name__}"
                    raise ConfigError("model", f"{rule}, and {config.model} gives {kind} for 2 {spec.inputs}")
            traits = _traits(model, spec)
        _check_state(config, model, build(config, spec))
    if sys.stdout is not None and sys.stdout.closed:
        raise ConfigError(
            "model", f"must leave sys.stdout open, which libraries write to, and {config.model} closes it"
        )
    _checked[key] = traits


def _key(config: TrainConfig, spec: DatasetSpec) -> tuple[object, ...]:
    return (config.model, config.model_source, config.task, spec, *sorted(config.model_options.items()))


def check_strategy(config: TrainConfig, spec: DatasetSpec, cannot: frozenset[str]) -> None:
    """Refuse a model that :func:`check` has accepted and that has what the strategy ``cannot`` train."""
    for trait, name in vars(_checked[_key(config, spec)]).items():
        if name and trait in cannot:
            raise ConfigError(
                "strategy", f"must be other than {config.strategy} for {config.model}, {_SAID[trait].format(name)}"
            )


def check_float32(config: TrainConfig, spec: DatasetSpec, field: str, value: str) -> None:
    """Refuse ``value`` for a model that :func:`check` has accepted and that has a parameter of another type."""
    if name := _checked[_key(config, spec)].dtype:
        raise ConfigError(field, f"must be other than {value} for {config.model}, {_SAID['dtype'].format(name)}")


def _check_state(config: TrainConfig, model: nn.Module, fresh: nn.Module) -> None:
    """Refuse state that is in no parameter or buffer: workers would not share it, nor checkpoints hold it.

    Likewise state that the forward pass has added: a ``fresh`` model could not load it.
    """
    if added := next((name for name in model.state_dict() if name not in fresh.state_dict()), None):
        raise ConfigError(
            "model",
            f"must have all its state when it is built, and {config.model} adds {added} in its forward pass; "
            "register_buffer takes persistent=False for what is no state",
        )
    named = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    named |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    if other := next((name for name in model.state_dict() if name not in named), None):
        raise ConfigError(
            "model",
            f"must keep its state in parameters and buffers (register_buffer), and {config.model} has {other}, as "
            "get_extra_state adds it",
        )


def _traits(model: nn.Module, spec: DatasetSpec) -> Traits:
    parameters = dict(model.named_parameters())
    norms: dict[nn.Module, str] = {}
    passes: Counter[nn.Module] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            norms[module] = name
            module.register_forward_hook(lambda norm, *_: passes.update([norm]))
    traits: dict[str, str] = {}
    for name, parameter in parameters.items():
        if parameter.ndim == 0:
            traits.setdefault("scalar", name)
        if parameter.dtype != torch.float32:
            traits.setdefault("dtype", name)
    for _ in range(_PASSES):
        before = {
            name: buffer.clone()
            for name, buffer in model.named_buffers()
            if name.rpartition(".")[0] not in norms.values()
        }
        passes.clear()
        model.zero_grad()
        model.train()(spec.example(2)).sum().backward()
        for name, parameter in parameters.items():
            if parameter.requires_grad and parameter.grad is None:
                traits.setdefault("unused", name)
        for name, buffer in model.named_buffers():
            if name in before and not torch.equal(buffer, before[name]):
                traits.setdefault("counted", name)
        for norm, count in passes.items():
            if count > 1:
                traits.setdefault("repeated", norms[norm])
    return Traits(**traits)


def check_layers(config: TrainConfig, spec: DatasetSpec, units: Callable[[nn.Module], list[nn.Module]]) -> None:
    """Refuse a model whose ``units``, from the first to the last, are not its forward pass, or share weights.

    They are compared in evaluation and in training mode, from the same state of torch's generator, to the last bit;
    once in a process.

    Raises:
        ConfigError: naming what two of them have, or the mode in which they differ.
    """
    if _key(config, spec) in _compared:
        return
    path = config.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(config, spec)
        whole_model = copy.deepcopy(model)
        made, names = units(model), {id(of): name for name, of in (*model.named_parameters(), *model.named_buffers())}
        held: set[int] = set()
        for unit in made:
            own = {id(of) for of in (*unit.parameters(), *unit.buffers())}
            if own - names.keys():
                raise ConfigError("model", f"must have in its stages() only layers of its own, and {path} has another")
            if both := own & held:
                name = names[min(both, key=lambda each: names[each])]
                raise ConfigError(
                    "strategy",
                    f"must keep the model whole for {path}, two of whose layers have {name} in common, so that two "
                    f"stages would each train it; got {config.strategy}",
                )
            held |= own
        inputs = spec.example(4)
        for mode in ("evaluation", "training"):
            results = []
            for whole in (whole_model.train(mode == "training"), nn.Sequential(*made).train(mode == "training")):
                torch.manual_seed(0)
                with torch.no_grad(), imports.calling(path, "model", "must be its stages(), one after the other"):
                    results.append(whole(inputs.clone()))
            one, other = results
            if not isinstance(other, Tensor) or one.shape != other.shape or not torch.equal(one, other):
                raise ConfigError(
                    "strategy",
                    f"must keep the model whole for {path}, whose stages(), one after the other, give other logits "
                    f"than its forward pass in {mode} mode; got {config.strategy}",
                )
    _compared.add(_key(config, spec))


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
