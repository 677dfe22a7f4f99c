"""Networks of other libraries, by the libraries' own registries: ``--model torchvision:NAME`` and ``timm:NAME``.

Each library has a module here with six functions: its names, what builds one of them, the size of one, the names of the
weights that there are for one, the download of such weights, and the constants that pixels were normalised by.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from cifar_ray.config.errors import ConfigError, first_line, suggestion
from cifar_ray.config.option import LIBRARIES

_OF_WEIGHTS = {"weights", "weights_backbone", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
_OF_WEIGHTS |= {"checkpoint_path", "cache_dir", "progress"}


def load(library: str) -> ModuleType:
    """The module here of a library.

    Raises:
        ConfigError: when the library is not installed.
    """
    assert library in LIBRARIES
    try:
        return importlib.import_module(f"cifar_ray.models.{library}_models")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "model", f"needs {error.name}; install it with `pip install 'cifar-ray[{library}]'`"
        ) from None


@functools.cache
def find(model: str) -> tuple[ModuleType, str]:
    """The module here of a model's library, and the network's name in the library.

    Raises:
        ConfigError: when there is no such network.
    """
    library, _, name = model.partition(":")
    module = load(library)
    known = module.names()
    if name not in known:
        near = suggestion(name, known)
        raise ConfigError("model", f"must name a network of {library} that classifies images, got {model}{near}")
    return module, name


def builder(model: str) -> Callable[..., nn.Module]:
    """What is called as ``build(image_size, channels, classes, **options)`` and returns the network, without weights.

    Raises:
        ConfigError: when there is no such network. The builder raises it on options that say which weights to load.
    """
    module, name = find(model)

    def build(*sizes: int, **options: Any) -> nn.Module:
        if hidden := sorted(_OF_WEIGHTS & {*options}):
            raise ConfigError("model_options", f"must not have {hidden[0]}: give --weights")
        made: nn.Module = module.build(name, *sizes, **options)
        return made

    return build


def fetch(model: str, tag: str, image_size: int, channels: int, options: dict[str, Any]) -> dict[str, Tensor]:
    """The library's weights of that name, from its cache or downloaded to it.

    Raises:
        ConfigError: when they can be neither read nor downloaded.
    """
    module, name = find(model)
    try:
        with torch.random.fork_rng(devices=[]):  # timm builds a network for them
            state: dict[str, Tensor] = module.fetch(name, tag, image_size, channels, **options)
    except Exception as error:  # of the network, the disk, or whatever a damaged file leads to
        raise ConfigError(
            "weights",
            f"{tag} of {model} can be neither read from {module.CACHE} nor downloaded ({first_line(error)})",
        ) from None
    return state
