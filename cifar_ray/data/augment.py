"""Variation and normalisation of images: batched tensor code on the device that trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray.data import order
from cifar_ray.data.datasets import DatasetSpec


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
    """What each sample is given: the crop's top row and left column, and whether it is mirrored.

    Args:
        samples: int64, shape (B,).
        seed: the run's seed.
        epoch: the epoch, from 0.
        variation: how images vary.

    Returns:
        int64 from 0 to ``2 * variation.padding``, the same, and bool; each of shape (B,).
    """
    hashed = order.hash64(seed, epoch, samples)
    first, second, third = ((hashed >> shift) & ((1 << _BITS) - 1) for shift in (0, _BITS, 2 * _BITS))
    if variation.alternate:
        third = (order.hash64(seed, 0, samples) >> 2 * _BITS) + epoch
    places = 2 * variation.padding + 1
    return first % places, second % places, (third & 1).bool()


def normaliser(spec: DatasetSpec) -> nn.Module:
    """What makes of a data set's inputs what its models take, as :data:`~cifar_ray.data.datasets.INPUTS` says."""
    if spec.inputs == "images":
        return Normalise(spec)
    return Standardise(spec) if spec.inputs == "features" else Tokens()


class Standardise(nn.Module):
    """Features with zero mean and unit variance over the training rows, 0 where they are all the same there.

    Maps float32 or float64 (B, length) to float32: only what is standardised in float64 keeps times and ids apart.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__()
        mean, std = (torch.tensor(part, dtype=torch.float64) for part in (spec.mean, spec.std))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", torch.where(std > 0, std, torch.inf), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows - self.mean) / self.std).float()


class Tokens(nn.Module):
    """Tokens as an embedding takes them: int64 (B, length)."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.long()


class Normalise(nn.Module):
    """Pixels as the models get them: zero mean and unit variance over the training images.

    Maps uint8 (B, H, W, C) to float32 (B, C, H, W) in channels-last memory order.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__()
        mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
        # One value for each number of an image: broadcasting over 3 channels takes 9 times as long on a CPU.
        pixels = spec.image_size**2
        self.register_buffer("scale", (1 / (255 * std)).repeat(pixels), persistent=False)
        self.register_buffer("shift", (-mean / std).repeat(pixels), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1).float().mul_(self.scale).add_(self.shift)
        return flat.view(images.shape).permute(0, 3, 1, 2)
