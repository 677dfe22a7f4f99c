"""torchvision's ResNet-50.

Source: He et al. 2015; the study "How does training ResNet50 on CIFAR-10 improve with multiple GPUs?"
(2025) trains torchvision's model as it is. Its stem is made for 224x224 images: of a 32x32 image, the last stage sees a
single pixel. ``--model-options.stem cifar`` is the usual replacement for small images.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch import nn

from cifar_ray.models import convolution
from cifar_ray.models.architecture import Architecture, Recipe, initialise

Stem = Annotated[
    Literal["imagenet", "cifar"],
    "'imagenet' is torchvision's own 7x7 stride-2 convolution and max-pool: a 32x32 image is 8x8 at the first block. "
    "'cifar' is a 3x3 stride-1 convolution without a pool: it keeps 32x32, at about 16 times the arithmetic",
]


def build(image_size: int, channels: int, classes: int, *, stem: Stem = "imagenet") -> nn.Module:
    """The network with this stem."""
    from torchvision.models import resnet50

    network = resnet50(weights=None, num_classes=classes)
    if stem == "cifar":
        network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        initialise(network.conv1, "fan_out")
        network.maxpool = nn.Identity()
    convolution.make_pointwise(network)
    return network


def layers(network: Any) -> list[nn.Module]:
    """The stem's modules, the Bottlenecks, the pool and the linear layer."""
    stages = (network.layer1, network.layer2, network.layer3, network.layer4)
    blocks = [block for stage in stages for block in stage]
    stem = [network.conv1, network.bn1, network.relu, network.maxpool]
    return [*stem, *blocks, network.avgpool, nn.Flatten(), network.fc]


MODEL = Architecture(build, (Recipe(optimizer="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=1.0),), layers)
