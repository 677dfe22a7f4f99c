"""The models by name, and their options. Nothing here imports torch, so that ``--help`` is quick."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.option import OWN, option, or_own
from cifar_ray.config.schema import STRICT, Count, Counts, Scalar, Share, plainly

ModelName = Literal["simple_cnn", "resnet", "resnet18", "resnet50", "vgg11", "speednet", "vit"]


def _options(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if not name.isidentifier():
            raise ValueError(f"must have names as Python's arguments have them, got {brief(name)}")
    return values


Options = Annotated[dict[str, Scalar], AfterValidator(_options)]
"""Keyword arguments of a function of the user's own."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ResNetOptions:
    """Only with ``--model resnet``."""

    blocks: Counts = option((1, 1, 1, 1), weights=True)
    """BasicBlocks in each stage. Every stage after the first halves the image and doubles the filters."""

    width: Count = option(16, weights=True)
    """Filters of the stem and of the first stage."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ResNet50Options:
    """Only with ``--model resnet50``."""

    stem: Literal["imagenet", "cifar"] = option("imagenet", weights=True)
    """'imagenet' is torchvision's own 7x7 stride-2 convolution and max-pool: a 32x32 image is 8x8 before the first
    block. 'cifar' is a 3x3 stride-1 convolution without a pool: it keeps 32x32, at about 16 times the arithmetic."""


@plainly
@dataclass(frozen=True, config=STRICT)
class ViTOptions:
    """Only with ``--model vit``."""

    patch_size: Count = option(4, weights=True)
    """Side of a square patch in pixels; it must divide the image's side."""

    dim: Count = option(192, weights=True)
    """Width of a token; a multiple of the number of heads."""

    depth: Count = option(6, weights=True)
    """Transformer blocks."""

    heads: Count = option(3, weights=True)
    """Attention heads."""

    mlp_ratio: Count = option(2, weights=True)
    """Width of a block's hidden layer as a multiple of dim."""

    dropout: Share = option(0.0, weights=True)
    """Share of activations dropped after the embedding, in attention and in the MLP."""

    stochastic_depth: Share = option(0.1, weights=True)
    """Probability of skipping the last block for a sample; it rises linearly from 0 at the first block."""

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ConfigError("dim", f"must be a multiple of vit.heads ({self.heads}), got {self.dim}")


@dataclasses.dataclass(frozen=True)
class Model:
    """Model."""

    model: Annotated[str, or_own(get_args(ModelName)), ModelName] = option("resnet", weights=True)
    """Architecture: one of this package, or MODULE:FUNCTION, a function of your own that is called as build(image_size,
    channels, classes) and returns an nn.Module."""

    model_options: Options = option(dict, weights=True, only={"model": (OWN,)})
    """Keyword arguments of your own function, such as --model-options.depth 4."""

    model_source: str | None = option(None, weights=True, only={"model": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines your own function."""

    resnet: ResNetOptions = option(ResNetOptions, weights=None, only={"model": ("resnet",)})
    resnet50: ResNet50Options = option(ResNet50Options, weights=None, only={"model": ("resnet50",)})
    vit: ViTOptions = option(ViTOptions, weights=None, only={"model": ("vit",)})
