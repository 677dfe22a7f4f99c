"""timm's networks, for :mod:`cifar_ray.models.libraries`; timm is an extra."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import Tensor, nn

CACHE = "HF_HOME (~/.cache/huggingface)"


def names() -> list[str]:
    """Their names, without those of weights."""
    listed: list[str] = timm.list_models()
    return listed


def build(name: str, image_size: int, channels: int, classes: int, **options: Any) -> nn.Module:
    """The network without weights."""
    return _create(name, image_size, in_chans=channels, num_classes=classes, **options)


def _create(name: str, image_size: int, **options: Any) -> nn.Module:
    """The network ``NAME`` or ``NAME.WEIGHTS``; one that takes images of one size only is built for ours."""
    known = timm.get_pretrained_cfg(name)
    size = {"img_size": image_size} if known is not None and known.fixed_input_size else {}
    network: nn.Module = timm.create_model(name, **{**size, **options})
    return network


def size(name: str) -> tuple[int, int]:
    """Its parameters, of which timm has no record, and the side of its images."""
    with torch.device("meta"):
        network: nn.Module = timm.create_model(name)
    return sum(parameter.numel() for parameter in network.parameters()), timm.get_pretrained_cfg(name).input_size[-1]


def weights(name: str) -> list[str]:
    """The network's tags of pretrained weights."""
    return [listed.removeprefix(f"{name}.") for listed in timm.list_pretrained(f"{name}.*")]


def fetch(name: str, tag: str, image_size: int, channels: int, **options: Any) -> dict[str, Tensor]:
    """The weights ``tag``, which timm fits to the size of the images and their channels, with their own classes."""
    network = _create(f"{name}.{tag}", image_size, in_chans=channels, pretrained=True, **options)
    state: dict[str, Tensor] = network.state_dict()
    return state


def pixels(name: str, tag: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of the pixels that the weights ``tag`` were trained with."""
    known = timm.get_pretrained_cfg(f"{name}.{tag}")
    return tuple(known.mean), tuple(known.std)
