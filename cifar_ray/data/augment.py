"""Variation and normalisation of images: batched tensor code on the device that trains."""

from __future__ import annotations

import torch
from torch import Tensor

from cifar_ray.data import order
from cifar_ray.data.datasets import DatasetSpec

PADDING = 4
"""Pixels of zeros on each side before the random crop."""

# What a draw is for, so that the draws of one sample are independent.
_ROW, _COLUMN, _FLIP = 1, 2, 3


def crop_and_flip(images: Tensor, samples: Tensor, seed: int, epoch: int, flip: bool) -> Tensor:
    """Padded random crop and random mirror, drawn for each sample from (seed, epoch, sample).

    Args:
        images: uint8, shape (B, H, W, C).
        samples: index of each image in its data set; int64, shape (B,), on the images' device.
        seed: the run's seed.
        epoch: the epoch, from 0.
        flip: whether to mirror half of the images.

    Returns:
        uint8, shape (B, H, W, C).
    """
    count, height, width, channels = images.shape
    device = images.device
    wide = width + 2 * PADDING
    padded = images.new_zeros(count, height + 2 * PADDING, wide, channels)
    padded[:, PADDING:-PADDING, PADDING:-PADDING] = images
    row = order.draw(2 * PADDING + 1, seed, epoch, _ROW, samples)
    column = order.draw(2 * PADDING + 1, seed, epoch, _COLUMN, samples)
    rows = row[:, None] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    if flip:
        mirrored = order.draw(2, seed, epoch, _FLIP, samples).bool()
        columns = torch.where(mirrored[:, None], columns.flip(0), columns)
    columns = column[:, None] + columns
    first = torch.arange(count, device=device) * (height + 2 * PADDING) * wide
    pixels = first[:, None, None] + rows[:, :, None] * wide + columns[:, None, :]
    return padded.view(-1, channels).index_select(0, pixels.view(-1)).view(images.shape)


def normalise(images: Tensor, spec: DatasetSpec) -> Tensor:
    """Pixels as the models get them: zero mean and unit variance over the training images.

    Args:
        images: uint8, shape (B, H, W, C).
        spec: the data set whose mean and standard deviation apply.

    Returns:
        float32, shape (B, C, H, W) in channels-last memory order.
    """
    mean = torch.tensor(spec.mean, device=images.device)
    std = torch.tensor(spec.std, device=images.device)
    return images.float().mul_(1 / (255 * std)).sub_(mean / std).permute(0, 3, 1, 2)
