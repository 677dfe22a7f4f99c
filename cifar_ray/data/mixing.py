"""mixup and CutMix: each training image mixed with another of the data set, and its label likewise.

The other image, and the share that it takes, are drawn from (seed, epoch, sample), as it is where both come from one
batch in the sources, but the same at any number of workers. Shares are whole 1,024ths or pixels, so that all of it is
integer arithmetic, the same on any device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cifar_ray.data import order

_WHOLE = 1 << 10
_DRAWS = 0x4D495831  # a word that no other draw has


class Partners(NamedTuple):
    """What each sample is mixed with.

    Attributes:
        samples: index of the other image in the data set; int64, shape (B,).
        draws: three uniform numbers from 0 to 1023 for each sample, for the shares; int64, shape (3, B).
    """

    samples: Tensor
    draws: Tensor


def partners(samples: Tensor, seed: int, epoch: int, size: int) -> Partners:
    """Draw, for ``samples`` (B,) of an epoch, from a data set of ``size`` images."""
    other = (order.hash64(seed, epoch, samples, _DRAWS) >> 1) & 0x7FFFFFFF
    hashed = order.hash64(seed, epoch, samples, _DRAWS + 1)
    return Partners(other % size, torch.stack([(hashed >> shift) & (_WHOLE - 1) for shift in (0, 20, 40)]))


def mixup(images: Tensor, others: Tensor, drawn: Partners) -> Tensor:
    """Blend each image with its partner (Zhang et al. 2018, alpha 1: every share is equally likely).

    Args:
        images: uint8, shape (B, H, W, C).
        others: the partners, likewise.
        drawn: the draws.

    Returns:
        uint8, shape (B, H, W, C).
    """
    share = drawn.draws[0].int()[:, None, None, None]
    return ((images * (_WHOLE - share) + others * share + _WHOLE // 2) >> 10).to(torch.uint8)


def cutmix(images: Tensor, others: Tensor, drawn: Partners) -> Tensor:
    """Paste a box of its partner into each image, in the same place (Yun et al. 2019, alpha 1).

    Arguments and result are those of :func:`mixup`.
    """
    height, width, channels = images.shape[1:]
    box = _boxes(drawn, height, width)
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).repeat_interleave(channels)
    inside = _within(rows, *box[0])[:, :, None] & _within(columns, *box[1])[:, None, :]
    return torch.where(inside, others.flatten(2), images.flatten(2)).view(images.shape)


def labels(first: Tensor, others: Tensor, drawn: Partners, name: str, side: int, classes: int) -> Tensor:
    """The labels of images that :func:`mixup` or :func:`cutmix` has made.

    Args:
        first: labels of the images, int64, shape (B,).
        others: those of the partners, likewise.
        drawn: the draws.
        name: ``mixup`` or ``cutmix``.
        side: side of an image in pixels.
        classes: number of classes.

    Returns:
        float32, shape (B, classes): each class's share of the image, 1 in all.
    """
    if name == "mixup":
        share = drawn.draws[0] / _WHOLE
    else:
        (top, bottom), (left, right) = _boxes(drawn, side, side)
        share = (bottom - top) * (right - left) / side**2
    one, other = (F.one_hot(each, classes).float() for each in (first, others))
    return one.lerp(other, share.float()[:, None])


def _boxes(drawn: Partners, height: int, width: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Top and bottom, left and right of the boxes, each of shape (B,): centred anywhere, and cut off at the edges."""
    area, row, column = drawn.draws
    share = (area.double() / _WHOLE).sqrt()
    return _span(row, share, height), _span(column, share, width)


def _span(centre: Tensor, share: Tensor, size: int) -> tuple[Tensor, Tensor]:
    middle, half = centre * size // _WHOLE, (share * size).long() // 2
    return (middle - half).clamp(min=0), (middle + half).clamp(max=size)


def _within(places: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    return (places >= start[:, None]) & (places < stop[:, None])
