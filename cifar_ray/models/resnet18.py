"""ResNet-18 for small images (He et al. 2015): ``resnet`` with two blocks in each stage, and width 64."""

from __future__ import annotations

from torch import nn

from cifar_ray.models import resnet
from cifar_ray.models.architecture import Architecture


def build(image_size: int, channels: int, classes: int) -> nn.Module:
    """The network."""
    return resnet.build(image_size, channels, classes, blocks=(2, 2, 2, 2), width=64)


MODEL = Architecture(build, resnet.RECIPES)
