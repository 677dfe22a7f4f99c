"""SegNet: a class for each pixel, from an encoder and a decoder that enlarges by the encoder's pooling indices.

Source: Badrinarayanan et al. 2017, "SegNet: A Deep Convolutional Encoder-Decoder Architecture for Image Segmentation":
the 13 convolutions of VGG-16 with batch norm, five max-pools whose indices say where a value goes on the way back, and
13 more convolutions, the last of which gives the classes. The paper's network has width 64: 29.4 million parameters.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray.config.schema import Count, Counts
from cifar_ray.models.architecture import Architecture, convolutions, initialise, whole
from cifar_ray.models.unet import RECIPES

Blocks = Annotated[Counts, "Convolutions in each stage of the encoder, which halves the image, and of the decoder"]
Width = Annotated[
    Count, "Filters of the first stage; each later one has twice as many, up to 8 times. The paper has 64"
]


class SegNet(nn.Module):
    """Images (B, channels, H, W), at least 2 pixels for each stage to halve, to logits (B, classes, H, W)."""

    def __init__(
        self, image_size: int, channels: int, classes: int, *, blocks: Blocks = (2, 2, 3, 3, 3), width: Width = 16
    ) -> None:
        super().__init__()
        filters = [width * min(2**stage, 8) for stage in range(len(blocks))]
        before = (channels, *filters)
        for stage, count in enumerate(blocks):
            self.add_module(f"encode{stage}", nn.Sequential(*convolutions([before[stage], *[filters[stage]] * count])))
        for stage in reversed(range(len(blocks))):
            inner = [filters[stage]] * blocks[stage]
            layers = convolutions([*inner, before[stage]] if stage else inner)
            if not stage:
                layers.append(nn.Conv2d(width, classes, 3, padding=1))
            self.add_module(f"decode{stage}", nn.Sequential(*layers))
        self._stages = range(len(blocks))
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        x, pooled = images, []
        for stage in self._stages:
            x = self.get_submodule(f"encode{stage}")(x)
            size = x.shape[2:]
            x, indices = F.max_pool2d(x, 2, return_indices=True)
            pooled.append((indices, size))
        for stage, (indices, size) in zip(reversed(self._stages), reversed(pooled)):
            x = F.max_unpool2d(x, indices, [2, 2], output_size=size)
            x = self.get_submodule(f"decode{stage}")(x)
        return x


MODEL = Architecture(SegNet, RECIPES, whole, has_masks=True)
