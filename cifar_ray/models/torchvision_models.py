"""torchvision's networks that classify images, for :mod:`cifar_ray.models.libraries`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchvision import models

CACHE = "TORCH_HOME (~/.cache/torch)"

# Auxiliary classifiers give logits of their own; without init_weights, torchvision warns of its default. Its weights
# were trained with pixels of mean 0.5; transform_input makes those of `--normalise imagenet`.
_INCEPTION = {"aux_logits": False, "init_weights": True, "transform_input": True}


def names() -> list[str]:
    """Their names; networks that detect or segment are in modules of their own."""
    listed: list[str] = models.list_models(module=models)
    return listed


def build(name: str, image_size: int, channels: int, classes: int, **options: Any) -> nn.Module:
    """The network without weights; all of them take three channels, as every data set has."""
    network: nn.Module = models.get_model_builder(name)(
        weights=None, num_classes=classes, **{**_usual(name, image_size), **options}
    )
    return network


def _usual(name: str, image_size: int) -> dict[str, Any]:
    if name in ("googlenet", "inception_v3"):
        return _INCEPTION
    if name.startswith("vit_"):
        return {"image_size": image_size}
    return {"input_size": (image_size, image_size)} if name.startswith("maxvit_") else {}


def size(name: str) -> tuple[int, int]:
    """Its parameters and the side of its images, with the default weights."""
    usual = models.get_model_weights(name)["DEFAULT"]
    return usual.meta["num_params"], usual.transforms().crop_size[0]


def weights(name: str) -> list[str]:
    """The members of the network's enum of weights."""
    return [*models.get_model_weights(name).__members__]


def fetch(name: str, tag: str, *_: int, **__: Any) -> dict[str, Tensor]:
    """The weights ``tag``; they are those of ImageNet's classes, whatever the options."""
    state: dict[str, Tensor] = models.get_model_weights(name)[tag].get_state_dict(
        progress=False, check_hash=True, weights_only=True
    )
    return state


def pixels(name: str, tag: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of the pixels that the weights ``tag`` were trained with."""
    transforms = models.get_model_weights(name)[tag].transforms()
    return tuple(transforms.mean), tuple(transforms.std)
