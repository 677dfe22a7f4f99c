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

    ``images`` and their partners ``others`` are uint8, (B, H, W, C), and so is the result.
    """
    share = drawn.draws[0].int()[:, None, None, None]
    return ((images * (_WHOLE - share) + others * share + _WHOLE // 2) >> 10).to(torch.uint8)


def cutmix(images: Tensor, others: Tensor, drawn: Partners) -> Tensor:
    """Paste a box of its partner into each image, in the same place (Yun et al. 2019, alpha 1); see :func:`mixup`."""
    height, width = images.shape[1:3]
    (top, bottom), (left, right) = ([edge[:, None] for edge in span] for span in _boxes(drawn, height, width))
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    tall, wide = (top <= rows) & (rows < bottom), (left <= columns) & (columns < right)
    return torch.where((tall[:, :, None] & wide[:, None, :])[..., None], others, images)


def labels(first: Tensor, others: Tensor, drawn: Partners, name: str, side: int, classes: int) -> Tensor:
    """The labels of images of ``side`` pixels that were mixed as ``name`` says: each class's share, 1 in all.

    The labels of images and of their partners are int64, (B,), the result float32, (B, classes).
    """
    if name == "mixup":
        share = drawn.draws[0] / _WHOLE
    else:
        (top, bottom), (left, right) = _boxes(drawn, side, side)
        share = (bottom - top) * (right - left) / side**2
    one, other = (F.one_hot(each, classes).float() for each in (first, others))
    return one.lerp(other, share.float()[:, None])


def _boxes(drawn: Partners, height: int, width: int) -> list[tuple[Tensor, Tensor]]:
    """Top and bottom, left and right of the boxes, each of shape (B,): centred anywhere, and cut off at the edges."""
    share, spans = (drawn.draws[0].double() / _WHOLE).sqrt(), []
    for centre, size in zip(drawn.draws[1:], (height, width)):
        middle, half = centre * size // _WHOLE, (share * size).long() // 2
        spans.append(((middle - half).clamp(min=0), (middle + half).clamp(max=size)))
    return spans
