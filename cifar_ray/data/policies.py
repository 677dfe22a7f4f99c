"""torchvision's augmentations, drawn for each sample from (seed, epoch, sample).

RandAugment and TrivialAugment are operations on shape and colour, with torchvision's magnitudes; samples that drew the
same one go through it together. The resized crop is that of RandomResizedCrop, one sample after the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cifar_ray.data import augment, order

_LEVELS = 31
_LEVEL = 9
"""RandAugment's, of 0 to 30."""
_DRAWS = 0x52414E44  # a word that no other draw has
_CROPS = 0x43524F50  # likewise
_TRIES = 10
"""How often RandomResizedCrop draws a box that does not fit into the image before it takes the whole image."""


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class _Operation(NamedTuple):
    """``apply(images, magnitude)``, with the strongest magnitude in RandAugment and in TrivialAugment.

    A signed one goes either way by chance.
    """

    apply: Callable[[Tensor, float], Tensor]
    mild: float = 1.0
    wide: float = 1.0
    signed: bool = False


def rand_augment(images: Tensor, samples: Tensor, seed: int, epoch: int) -> Tensor:
    """Two operations for each image, of 14, at level 9 of 30 (Cubuk et al. 2020, with torchvision's defaults).

    Args:
        images: uint8, shape (B, H, W, C).
        samples: index of each image in its data set; int64, shape (B,), on the images' device.
        seed: the run's seed.
        epoch: the epoch, from 0.

    Returns:
        uint8, shape (B, H, W, C).
    """
    for turn in range(2):
        images = _apply(images, order.hash64(seed, epoch, samples, _DRAWS + turn), wide=False)
    return images


def trivial_augment(images: Tensor, samples: Tensor, seed: int, epoch: int) -> Tensor:
    """One operation for each image, of 14, at any of 31 levels (Mueller and Hutter 2021, the wide space).

    Arguments and result are those of :func:`rand_augment`.
    """
    return _apply(images, order.hash64(seed, epoch, samples, _DRAWS), wide=True)


def resized_crop(
    images: Tensor,
    samples: Tensor,
    seed: int,
    epoch: int,
    flip: bool,
    variation: augment.Variation = augment.USUAL,
) -> Tensor:
    """A box of each image, of any of :func:`boxes`, resized to the image's size with antialiasing; perhaps mirrored.

    Source: Szegedy et al. 2015, "Going Deeper with Convolutions", as torchvision's RandomResizedCrop has it.

    Args:
        images: uint8, shape (B, H, W, C), square.
        samples: index of each image in its data set; int64, shape (B,), on the images' device.
        seed: the run's seed.
        epoch: the epoch, from 0.
        flip: whether to mirror half of the images, the ones that :func:`cifar_ray.data.augment.draws` names.
        variation: how images vary; of it, when they are mirrored.

    Returns:
        uint8, shape (B, H, W, C).
    """
    from torchvision.transforms.v2 import functional as F

    side = images.shape[1]
    mirror = augment.draws(samples, seed, epoch, variation)[2].tolist() if flip else [False] * len(samples)
    crops = torch.empty_like(images)
    for image, crop, box, mirrored in zip(images, crops, boxes(samples, seed, epoch, side), mirror, strict=True):
        resized = F.resized_crop(image.permute(2, 0, 1), *box, size=[side, side], antialias=True)
        crop.copy_((resized.flip(2) if mirrored else resized).permute(1, 2, 0))
    return crops


def boxes(samples: Tensor, seed: int, epoch: int, side: int) -> list[Box]:
    """The part of each image, of ``side`` pixels, that a resized crop shows.

    Its area is 8 to 100 % of the image's and its aspect ratio 3:4 to 4:3, uniform in the logarithm; it lies anywhere.
    """
    # As numbers of Python: the roots and exponentials of devices differ in their last bits.
    shapes = [_uniform(order.hash64(seed, epoch, samples, _CROPS + turn)) for turn in range(_TRIES)]
    places = _uniform(order.hash64(seed, epoch, samples, _CROPS + _TRIES))
    chosen = []
    for row, column, *tries in zip(*places, *(zip(*shape) for shape in shapes), strict=True):
        height = width = side
        for share, turn in tries:
            area, aspect = side**2 * (0.08 + 0.92 * share), (4 / 3) ** (2 * turn - 1)
            tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < tall <= side and 0 < wide <= side:
                height, width = tall, wide
                break
        chosen.append(Box(int(row * (side - height + 1)), int(column * (side - width + 1)), height, width))
    return chosen


def _uniform(hashed: Tensor) -> list[list[float]]:
    """Two numbers from 0 to 1 for each hash."""
    return [(((hashed >> shift) & 0xFFFFF).double() / (1 << 20)).tolist() for shift in (0, 20)]


def _apply(images: Tensor, hashed: Tensor, wide: bool) -> Tensor:
    operations = _operations(images.shape[1])
    kinds, levels, signs = ((hashed >> shift) & 0xFFFFF for shift in (0, 20, 40))
    levels = levels % _LEVELS if wide else torch.full_like(levels, _LEVEL)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, drawn in enumerate(torch.stack([kinds % len(operations), levels, signs % 2], 1).tolist()):
        groups[tuple(drawn)].append(place)
    changed = images.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
    for (kind, level, sign), places in groups.items():
        apply, mild, strong, signed = operations[kind]
        magnitude = (strong if wide else mild) * level / (_LEVELS - 1)
        drew = torch.tensor(places, device=images.device)
        changed[drew] = apply(changed[drew], -magnitude if signed and sign else magnitude)
    return changed.permute(0, 2, 3, 1).contiguous()


def _operations(side: int) -> list[_Operation]:
    """For images of ``side`` pixels."""
    from torchvision.transforms.v2 import functional as F  # seconds of CPU time, and few runs use it

    return [
        _Operation(lambda images, _: images),
        _Operation(lambda images, by: _sheared(images, [by, 0.0]), 0.3, 0.99, signed=True),
        _Operation(lambda images, by: _sheared(images, [0.0, by]), 0.3, 0.99, signed=True),
        _Operation(lambda images, by: _moved(images, [int(by), 0]), 150 / 331 * side, 32.0, signed=True),
        _Operation(lambda images, by: _moved(images, [0, int(by)]), 150 / 331 * side, 32.0, signed=True),
        _Operation(F.rotate, 30.0, 135.0, signed=True),
        _Operation(lambda images, by: F.adjust_brightness(images, 1 + by), 0.9, 0.99, signed=True),
        _Operation(lambda images, by: F.adjust_saturation(images, 1 + by), 0.9, 0.99, signed=True),
        _Operation(lambda images, by: F.adjust_contrast(images, 1 + by), 0.9, 0.99, signed=True),
        _Operation(lambda images, by: F.adjust_sharpness(images, 1 + by), 0.9, 0.99, signed=True),
        _Operation(lambda images, lost: F.posterize(images, 8 - round(lost)), 4.0, 6.0),
        _Operation(lambda images, by: F.solarize(images, 255 * (1 - by))),
        _Operation(lambda images, _: F.autocontrast(images)),
        _Operation(lambda images, _: F.equalize(images)),
    ]


def _sheared(images: Tensor, by: list[float]) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    degrees = [math.degrees(math.atan(each)) for each in by]
    return F.affine(images, angle=0.0, translate=[0, 0], scale=1.0, shear=degrees, center=[0, 0])


def _moved(images: Tensor, by: list[int]) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    return F.affine(images, angle=0.0, translate=by, scale=1.0, shear=[0.0, 0.0])
