"""All parameters of a model in one vector, one after the other, each in the layout it has in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor, nn

Layout = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Shape and strides of every parameter, in the model's order."""


def of(model: nn.Module) -> Layout:
    """The layout of a model's parameters, all of them dense."""
    return tuple((tuple(parameter.shape), parameter.stride()) for parameter in model.parameters())


def size(model: nn.Module) -> int:
    """Numbers in the vector."""
    return sum(parameter.numel() for parameter in model.parameters())


def views(vector: Tensor, layout: Layout) -> Iterator[Tensor]:
    """The part of a vector that belongs to each parameter, shaped and laid out like it; not a copy."""
    start = 0
    for shape, stride in layout:
        count = math.prod(shape)
        yield vector[start : start + count].as_strided(shape, stride)
        start += count


def move_into(vector: Tensor, model: nn.Module) -> None:
    """Keep a model's parameters in ``vector``, of shape (size,), from now on; their values are copied there."""
    for parameter, view in zip(model.parameters(), views(vector, of(model))):
        view.copy_(parameter.detach())
        parameter.data = view
