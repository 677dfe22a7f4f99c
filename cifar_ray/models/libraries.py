"""Networks of other libraries, by the libraries' own registries: ``--model torchvision:NAME`` and ``timm:NAME``.

Each library has a module here with six functions: its names, what builds one of them, the size of one, the names of the
weights that there are for one, the download of such weights, and the constants that pixels were normalised by.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from cifar_ray.config.errors import ConfigError, first_line, suggestion
from cifar_ray.config.option import LIBRARIES


def names(library: str) -> list[str]:
    """The models of a library, such as ``torchvision:resnet18``.

    Raises:
        ConfigError: when the library is not installed.
    """
    return [f"{library}:{name}" for name in _module(library).names()]


def builder(model: str) -> Callable[..., nn.Module]:
    """What is called as ``build(image_size, channels, classes, **options)`` and returns the network, without weights.

    Raises:
        ConfigError: when there is no such network. The builder raises it on options that the network does not have.
    """
    return functools.partial(_build, model)


def size(model: str) -> tuple[int, int]:
    """Parameters of a model as the library has it, and the side of the images that its weights are for, in pixels."""
    module, name = _found(model)
    parameters, side = module.size(name)
    return parameters, side


def weights(model: str) -> Sequence[str]:
    """The names of the weights that the library has for a model of its own."""
    module, name = _found(model)
    known: Sequence[str] = module.weights(name)
    return known


def pixels(model: str, tag: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of the pixels that the library's weights ``tag`` were trained with."""
    module, name = _found(model)
    constants: tuple[tuple[float, ...], tuple[float, ...]] = module.pixels(name, tag)
    return constants


def fetch(model: str, tag: str, image_size: int, channels: int, options: dict[str, Any]) -> dict[str, Tensor]:
    """The library's weights of that name, from its cache or downloaded to it.

    Raises:
        ConfigError: when they can be neither read nor downloaded.
    """
    module, name = _found(model)
    try:
        with torch.random.fork_rng(devices=[]):  # timm builds a network for them
            state: dict[str, Tensor] = module.fetch(name, tag, image_size, channels, **options)
    except Exception as error:  # of the network, the disk, or whatever a damaged file leads to
        raise ConfigError(
            "weights",
            f"{tag} of {model} can be neither read from {module.CACHE} nor downloaded ({first_line(error)})",
        ) from None
    return state


def _build(model: str, image_size: int, channels: int, classes: int, **options: Any) -> nn.Module:
    module, name = _found(model)
    if hidden := [option for option in options if option in module.OF_WEIGHTS]:
        raise ConfigError("model_options", f"must not have {hidden[0]}: give --weights")
    try:
        made: nn.Module = module.build(name, image_size, channels, classes, **options)
    except TypeError as error:
        raise ConfigError("model_options", f"must fit {model}: {error}") from None
    return made


@functools.cache
def _found(model: str) -> tuple[ModuleType, str]:
    """The library's module, and the network's name in the library."""
    library, _, name = model.partition(":")
    module = _module(library)
    known = module.names()
    if name not in known:
        near = suggestion(name, known)
        raise ConfigError("model", f"must name a network of {library} that classifies images, got {model}{near}")
    return module, name


def _module(library: str) -> ModuleType:
    assert library in LIBRARIES
    try:
        return importlib.import_module(f"cifar_ray.models.{library}_models")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "model", f"needs {error.name}; install it with `pip install 'cifar-ray[{library}]'`"
        ) from None
