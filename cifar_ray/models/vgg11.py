"""VGG-11 with batch norm for small images.

Sources: Simonyan and Zisserman 2014, configuration A; the group report "Distributed Training of VGG-11 on CIFAR-10":
eight 3x3 convolutions with batch norm, five max-pools, one linear layer on the features of the pixels that are left.
"""

from __future__ import annotations

from torch import nn

from cifar_ray.models.architecture import Architecture, Recipe, initialise

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def build(image_size: int, channels: int, classes: int) -> nn.Module:
    """The network for this image size and these channels and classes."""
    layers: list[nn.Module] = []
    for stage in _STAGES:
        for filters in stage:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    side = image_size // 2 ** len(_STAGES)
    layers += [nn.Flatten(), nn.Linear(channels * side * side, classes)]
    network = nn.Sequential(*layers)
    initialise(network, "fan_out")
    return network


MODEL = Architecture(build, (Recipe(optimizer="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=1.0),))
