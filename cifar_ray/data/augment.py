"""Variation of images: batched tensor code on the device that trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cifar_ray.data import order


@dataclass(frozen=True)
class Variation:
    """How training images vary.

    Attributes:
        padding: pixels on each side before the random crop.
        reflect: whether they mirror the image's edge; else they are zeros.
        alternate: whether an image is mirrored in every second epoch, the first or not; else by chance in each.
    """

    padding: int = 4
    reflect: bool = False
    alternate: bool = False


USUAL = Variation()

_BITS = 20  # of a sample's hash for each draw; one hash gives all three


def crop_and_flip(
    images: Tensor, samples: Tensor, seed: int, epoch: int, flip: bool, variation: Variation = USUAL, border: int = 0
) -> Tensor:
    """Padded random crop and random mirror, drawn for each sample from (seed, epoch, sample).

    Args:
        images: uint8, shape (B, H, W, C).
        samples: index of each image in its data set; int64, shape (B,), on the images' device.
        seed: the run's seed.
        epoch: the epoch, from 0.
        flip: whether to mirror half of the images.
        variation: how they vary.
        border: value of the padding, where it does not mirror the image's edge.

    Returns:
        uint8, shape (B, H, W, C).
    """
    count, height, width, channels = images.shape
    row, column, mirror = draws(samples, seed, epoch, variation)
    sides = [variation.padding] * 4
    if variation.reflect:
        padded = F.pad(images.permute(0, 3, 1, 2), sides, "reflect").permute(0, 2, 3, 1).contiguous()
    else:
        padded = F.pad(images, [0, 0, *sides], value=border)
    tall, wide = padded.shape[1:3]
    runs = padded.view(-1).unfold(0, width * channels, 1)  # a view: the bytes of a row's length from each byte on
    first = (torch.arange(count, device=images.device) * tall + row) * wide + column
    starts = (first[:, None] + torch.arange(height, device=images.device) * wide) * channels
    crops = runs.index_select(0, starts.view(-1)).view(images.shape)
    return torch.where(mirror[:, None, None, None], crops.flip(2), crops) if flip else crops


def draws(samples: Tensor, seed: int, epoch: int, variation: Variation = USUAL) -> tuple[Tensor, Tensor, Tensor]:
    """What each of ``samples``, int64 (B,), is given: the crop's top row and left column, and whether it is mirrored.

    They are int64 from 0 to ``2 * variation.padding``, the same, and bool; each of shape (B,).
    """
    hashed = order.hash64(seed, epoch, samples)
    first, second, third = ((hashed >> shift) & ((1 << _BITS) - 1) for shift in (0, _BITS, 2 * _BITS))
    if variation.alternate:
        third = (order.hash64(seed, 0, samples) >> 2 * _BITS) + epoch
    places = 2 * variation.padding + 1
    return first % places, second % places, (third & 1).bool()
