"""U-Net: a class for each pixel, from an encoder and a decoder of equal depth with skips between their levels.

Source: Ronneberger et al. 2015, "U-Net: Convolutional Networks for Biomedical Image Segmentation": four times two 3x3
convolutions and a max-pool, two more at the bottom, and back by 2x2 transposed convolutions. Here convolutions are
padded, so that the output is as large as the image, and a level of odd size is padded on its way up. The paper's
network has width 64 and no batch norm: 31,030,658 parameters for one channel and two classes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray.config.schema import Count
from cifar_ray.models.architecture import Architecture, Recipe, convolutions, initialise, whole

RECIPES = (
    Recipe(optimizer="adamw", lr=3e-3, weight_decay=0.01, warmup_epochs=1.0, base_batch=16),
    Recipe(optimizer="sgd", lr=0.1, weight_decay=5e-4, warmup_epochs=1.0, base_batch=16),
)

_LEVELS = 4


class Up(nn.Module):
    """Twice as large as (B, C, H, W), beside what the encoder had at that size: (B, filters, 2 H, 2 W)."""

    def __init__(self, channels: int, filters: int, has_norm: bool) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(channels, filters, 2, stride=2)
        self.merge = nn.Sequential(*convolutions([2 * filters, filters, filters], has_norm))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.enlarge(x)
        missing = [skip.shape[3] - x.shape[3], skip.shape[2] - x.shape[2]]  # a pixel where the level is of odd size
        x = F.pad(x, [0, missing[0], 0, missing[1]])
        return self.merge(torch.cat([skip, x], dim=1))


Width = Annotated[Count, "Filters of the first level; each of four deeper ones has twice as many. The paper has 64"]
Norm = Annotated[Literal["batch", "none"], "Batch norm after each 3x3 convolution, or biases alone, as in the paper"]


class UNet(nn.Module):
    """Images (B, channels, H, W) of at least 16x16 pixels to logits (B, classes, H, W); the keywords are options."""

    def __init__(
        self, image_size: int, channels: int, classes: int, *, width: Width = 16, norm: Norm = "batch"
    ) -> None:
        super().__init__()
        has_norm = norm == "batch"
        filters = [width * 2**level for level in range(_LEVELS + 1)]
        for level, (inputs, outputs) in enumerate(zip((channels, *filters), filters)):
            self.add_module(f"down{level}", nn.Sequential(*convolutions([inputs, outputs, outputs], has_norm)))
        for level in reversed(range(_LEVELS)):
            self.add_module(f"up{level}", Up(filters[level + 1], filters[level], has_norm))
        self.head = nn.Conv2d(width, classes, 1)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        x, skips = images, []
        for level in range(_LEVELS):
            x = self.get_submodule(f"down{level}")(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.get_submodule(f"down{_LEVELS}")(x)
        for level in reversed(range(_LEVELS)):
            x = self.get_submodule(f"up{level}")(x, skips[level])
        return self.head(x)


MODEL = Architecture(UNet, RECIPES, whole, has_masks=True)
