"""Networks of other libraries, by the libraries' own registries: ``--model torchvision:NAME`` and ``timm:NAME``.

Each library is a class with the same methods: the names of its networks that classify images, one built without
weights, the tags of the weights that there are for it, the weights of a tag as a state dict for the library's own
classes, from its cache or downloaded, and the constants that normalised the pixels which they were trained with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cifar_ray.config.errors import ConfigError, first_line, suggestion

Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel."""


class Torchvision:
    """torchvision's networks that classify images; all of them take three channels, as every data set has."""

    cache = "TORCH_HOME (~/.cache/torch)"

    def __init__(self) -> None:
        from torchvision import models

        self._models: Any = models

    def names(self) -> list[str]:
        return self._models.list_models(module=self._models)  # others are in modules of their own

    def build(self, name: str, image_size: int, channels: int, classes: int, **options: Any) -> nn.Module:
        usual: dict[str, Any] = {}
        if name in ("googlenet", "inception_v3"):
            # Auxiliary classifiers give logits of their own; without init_weights, torchvision warns of its default.
            # Its weights were trained with pixels of mean 0.5; transform_input makes those of `--normalise imagenet`.
            usual = {"aux_logits": False, "init_weights": True, "transform_input": True}
        elif name.startswith("vit_"):
            usual = {"image_size": image_size}
        elif name.startswith("maxvit_"):
            usual = {"input_size": (image_size, image_size)}
        return self._models.get_model_builder(name)(weights=None, num_classes=classes, **{**usual, **options})

    def weights(self, name: str) -> list[str]:
        return [*self._models.get_model_weights(name).__members__]

    def fetch(self, name: str, tag: str, image_size: int, channels: int, options: dict[str, Any]) -> dict[str, Tensor]:
        entry = self._models.get_model_weights(name)[tag]
        return entry.get_state_dict(progress=False, check_hash=True, weights_only=True)

    def pixels(self, name: str, tag: str) -> Constants:
        transforms = self._models.get_model_weights(name)[tag].transforms()
        return tuple(transforms.mean), tuple(transforms.std)


class Timm:
    """timm's networks; timm is an extra."""

    cache = "HF_HOME (~/.cache/huggingface)"

    def __init__(self) -> None:
        import timm

        self._timm: Any = timm

    def names(self) -> list[str]:
        return self._timm.list_models()

    def build(self, name: str, image_size: int, channels: int, classes: int, **options: Any) -> nn.Module:
        known = self._timm.get_pretrained_cfg(name)
        usual: dict[str, Any] = {"in_chans": channels, "num_classes": classes}
        if known is not None and known.fixed_input_size:  # one that takes images of one size only is built for ours
            usual["img_size"] = image_size
        return self._timm.create_model(name, **{**usual, **options})

    def weights(self, name: str) -> list[str]:
        return [tagged.removeprefix(f"{name}.") for tagged in self._timm.list_pretrained(f"{name}.*")]

    def fetch(self, name: str, tag: str, image_size: int, channels: int, options: dict[str, Any]) -> dict[str, Tensor]:
        # timm fits them to the images' size and channels.
        classes = self._timm.get_pretrained_cfg(f"{name}.{tag}").num_classes
        return self.build(f"{name}.{tag}", image_size, channels, classes, pretrained=True, **options).state_dict()

    def pixels(self, name: str, tag: str) -> Constants:
        known = self._timm.get_pretrained_cfg(f"{name}.{tag}")
        return tuple(known.mean), tuple(known.std)


Library = Torchvision | Timm
_LIBRARIES: dict[str, type[Library]] = {"torchvision": Torchvision, "timm": Timm}
_OF_WEIGHTS = {"weights", "weights_backbone", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
_OF_WEIGHTS |= {"checkpoint_path", "cache_dir", "progress"}


@functools.cache
def load(library: str) -> Library:
    """A library by its name; a ConfigError when it is not installed."""
    try:
        return _LIBRARIES[library]()
    except ModuleNotFoundError as error:
        problem = f"needs {error.name}; install it with `pip install 'cifar-ray[{library}]'`"
        raise ConfigError("model", problem) from None


@functools.cache
def find(model: str) -> tuple[Library, str]:
    """The library of a model such as ``timm:convnext_tiny``, and the network's name in it; a ConfigError without."""
    library, _, name = model.partition(":")
    known = load(library).names()
    if name not in known:
        near = suggestion(name, known)
        raise ConfigError("model", f"must name a network of {library} that classifies images, got {model}{near}")
    return load(library), name


def builder(model: str) -> Callable[..., nn.Module]:
    """What is called as ``build(image_size, channels, classes, **options)`` and returns the network, without weights.

    Raises:
        ConfigError: when there is no such network. The builder raises it on options that say which weights to load.
    """
    library, name = find(model)

    def build(*sizes: int, **options: Any) -> nn.Module:
        if hidden := sorted(_OF_WEIGHTS & {*options}):
            raise ConfigError("model_options", f"must not have {hidden[0]}: give --weights")
        return library.build(name, *sizes, **options)

    return build


def fetch(model: str, tag: str, image_size: int, channels: int, options: dict[str, Any]) -> dict[str, Tensor]:
    """The library's weights of that name, from its cache or downloaded; a ConfigError where neither is possible."""
    library, name = find(model)
    try:
        with torch.random.fork_rng(devices=[]):  # timm builds a network for them
            return library.fetch(name, tag, image_size, channels, options)
    except Exception as error:  # of the network, the disk, or whatever a damaged file leads to
        problem = f"{tag} of {model} can be neither read from {library.cache} nor downloaded ({first_line(error)})"
        raise ConfigError("weights", problem) from None
