"""torchvision's augmentations, drawn for each sample from (seed, epoch, sample).

RandAugment and TrivialAugment are operations on shape and colour, with torchvision's magnitudes. Samples that drew the
same operation go through it together, whatever magnitude each drew: some 200 calls for 1,024 images of 32 pixels in
place of 7,000. What an operation does to places or values is a table that torchvision itself has made, once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from cifar_ray.data import augment, order

_LEVELS = 31
_LEVEL = 9
"""RandAugment's, of 0 to 30."""
_DRAWS = 0x52414E44  # a word that no other draw has
_CROPS = 0x43524F50  # likewise
_TRIES = 10
"""How often RandomResizedCrop draws a box that does not fit into the image before it takes the whole image."""


class _Operation(NamedTuple):
    """``apply(images, magnitude)``, with the strongest magnitude in RandAugment and in TrivialAugment.

    A signed one goes either way by chance. With its magnitude, it ``moves`` pixels, ``maps`` values, or ``blends``: of
    images and the shares that stay, ``terms`` are two whose sum is the result, the second times the share that does
    not.
    """

    apply: Callable[[Tensor, float], Tensor]
    mild: float = 1.0
    wide: float = 1.0
    signed: bool = False
    does: Literal["", "moves", "maps", "blends"] = ""
    terms: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda images, _: (images, images)


def rand_augment(images: Tensor, samples: Tensor, seed: int, epoch: int) -> Tensor:
    """Two operations for each image, of 14, at level 9 of 30 (Cubuk et al. 2020, with torchvision's defaults).

    Arguments and result are those of :func:`cifar_ray.data.augment.crop_and_flip`.
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
    nearest: bool = False,
) -> Tensor:
    """A box of each image, of any of :func:`boxes`, resized to the image's size with antialiasing; perhaps mirrored.

    Source: Szegedy et al. 2015, "Going Deeper with Convolutions", as torchvision's RandomResizedCrop has it. Images are
    square; with ``nearest``, pixels are chosen and not mixed, as masks need it. Other arguments and the result are
    those of :func:`cifar_ray.data.augment.crop_and_flip`.
    """
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    resize: Any = {"interpolation": InterpolationMode.NEAREST_EXACT} if nearest else {"antialias": True}
    side, samples = images.shape[1], samples.cpu()  # a GPU would wait for each number that is read from it
    mirror = augment.draws(samples, seed, epoch, variation)[2].tolist() if flip else [False] * len(samples)
    crops = torch.empty_like(images)
    for image, crop, box, mirrored in zip(images, crops, boxes(samples, seed, epoch, side), mirror, strict=True):
        resized = F.resized_crop(image.permute(2, 0, 1), *box, size=[side, side], **resize)
        crop.copy_((resized.flip(2) if mirrored else resized).permute(1, 2, 0))
    return crops


def boxes(samples: Tensor, seed: int, epoch: int, side: int) -> list[tuple[int, int, int, int]]:
    """The part of each image, of ``side`` pixels, that a resized crop shows: top, left, height, width.

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
        chosen.append((int(row * (side - height + 1)), int(column * (side - width + 1)), height, width))
    return chosen


def _uniform(hashed: Tensor) -> list[list[float]]:
    """Two numbers from 0 to 1 for each hash."""
    return [(((hashed >> shift) & 0xFFFFF).double() / (1 << 20)).tolist() for shift in (0, 20)]


def _apply(images: Tensor, hashed: Tensor, wide: bool) -> Tensor:
    operations = _together(images.shape[1], wide, images.device)
    kinds, levels, signs = ((hashed >> shift) & 0xFFFFF for shift in (0, 20, 40))
    kinds, drawn = kinds % len(operations), 2 * (levels % _LEVELS if wide else 0) + signs % 2
    sizes = (kinds == torch.arange(len(operations), device=kinds.device)[:, None]).sum(1).tolist()
    places = kinds.argsort(stable=True)
    changed = images.permute(0, 3, 1, 2)[places].contiguous()
    parts = zip(operations, torch.split(changed, sizes), torch.split(drawn[places], sizes))
    changed = torch.cat([apply(part, draws) for apply, part, draws in parts if len(part)])
    back = torch.empty_like(places)
    back[places] = torch.arange(len(places), device=places.device)
    return changed[back].permute(0, 2, 3, 1).contiguous()


POLICIES = {"randaugment": rand_augment, "trivialaugment": trivial_augment}
"""By the names that ``--augment`` has."""

Together = Callable[[Tensor, Tensor], Tensor]
"""An operation on uint8 images (N, C, side, side), each with what it drew (N,): twice the level, and 1 for the other
way."""


@functools.cache
def _together(side: int, wide: bool, device: torch.device) -> list[Together]:
    """The operations on images of ``side`` pixels; with their tables, which are made on the CPU, on ``device``."""
    levels = range(_LEVELS) if wide else [_LEVEL]
    made = []
    for operation in _operations(side):
        strongest = operation.wide if wide else operation.mild
        signs = (1, -1 if operation.signed else 1)
        magnitudes = [sign * (strongest * level / (_LEVELS - 1)) for level in levels for sign in signs]
        made.append(_KINDS[operation.does](operation, magnitudes, side, device))
    return made


def _plain(operation: _Operation, magnitudes: Sequence[float], side: int, device: torch.device) -> Together:
    return lambda images, _: operation.apply(images, 0.0)


def _moves(operation: _Operation, magnitudes: Sequence[float], side: int, device: torch.device) -> Together:
    """By the place that each pixel comes from, with 0 for none, as the operation moves numbered pixels."""
    numbered = torch.arange(1.0, side * side + 1).view(1, 1, side, side)
    sources = torch.cat([operation.apply(numbered, by) for by in magnitudes]).flatten(1).int().to(device)

    def apply(images: Tensor, drawn: Tensor) -> Tensor:
        places = sources[drawn].long()[:, None].expand(-1, images.shape[1], -1)
        return pad(images.flatten(2), (1, 0)).gather(2, places).view(images.shape)

    return apply


def _maps(operation: _Operation, magnitudes: Sequence[float], side: int, device: torch.device) -> Together:
    """By what becomes of each of the 256 values of a pixel."""
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    mapped = torch.cat([operation.apply(values, by) for by in magnitudes]).flatten(1).to(device)
    return lambda images, drawn: mapped[drawn].gather(1, images.flatten(1).long()).view(images.shape)


def _blends(operation: _Operation, magnitudes: Sequence[float], side: int, device: torch.device) -> Together:
    """As torchvision, whose sum of a term and a product is rounded once (``add`` with ``alpha`` is an FMA)."""
    ratios = torch.tensor([1 + by for by in magnitudes], dtype=torch.float64, device=device)

    def apply(images: Tensor, drawn: Tensor) -> Tensor:
        ratio = ratios[drawn].view(-1, 1, 1, 1)
        kept, other = operation.terms(images, ratio.float())
        both = kept.double() + other.double() * (1 - ratio).float().double()
        return both.float().clamp_(0, 255).to(images.dtype)

    return apply


_KINDS = {"": _plain, "moves": _moves, "maps": _maps, "blends": _blends}


def _operations(side: int) -> list[_Operation]:
    """For images of ``side`` pixels."""
    from torchvision.transforms.v2 import functional as F  # seconds of CPU time, and few runs use it

    def to_grey(images: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        return images * share, F.rgb_to_grayscale(images).float()

    def to_mean(images: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        kept, grey = to_grey(images, share)
        return kept, grey.mean((1, 2, 3), keepdim=True)

    def to_blurred(images: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return images, F.adjust_sharpness(images, 0.0).float() - images

    def sheared(images: Tensor, by: list[float]) -> Tensor:
        degrees = [math.degrees(math.atan(each)) for each in by]
        return F.affine(images, angle=0.0, translate=[0, 0], scale=1.0, shear=degrees, center=[0, 0])

    def moved(images: Tensor, by: list[int]) -> Tensor:
        return F.affine(images, angle=0.0, translate=by, scale=1.0, shear=[0.0, 0.0])

    moving, mapping = partial(_Operation, does="moves", signed=True), partial(_Operation, does="maps")
    blending = partial(_Operation, mild=0.9, wide=0.99, signed=True, does="blends")
    return [
        _Operation(lambda images, _: images),
        moving(lambda images, by: sheared(images, [by, 0.0]), 0.3, 0.99),
        moving(lambda images, by: sheared(images, [0.0, by]), 0.3, 0.99),
        moving(lambda images, by: moved(images, [int(by), 0]), 150 / 331 * side, 32.0),
        moving(lambda images, by: moved(images, [0, int(by)]), 150 / 331 * side, 32.0),
        moving(F.rotate, 30.0, 135.0),
        mapping(lambda images, by: F.adjust_brightness(images, 1 + by), 0.9, 0.99, signed=True),
        blending(lambda images, by: F.adjust_saturation(images, 1 + by), terms=to_grey),
        blending(lambda images, by: F.adjust_contrast(images, 1 + by), terms=to_mean),
        blending(lambda images, by: F.adjust_sharpness(images, 1 + by), terms=to_blurred),
        mapping(lambda images, lost: F.posterize(images, 8 - round(lost)), 4.0, 6.0),
        mapping(lambda images, by: F.solarize(images, 255 * (1 - by))),
        _Operation(lambda images, _: F.autocontrast(images)),
        _Operation(lambda images, _: F.equalize(images)),
    ]
