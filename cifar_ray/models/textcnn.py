"""Convolutions over words, each filter's largest answer in a text, and a linear layer.

Source: Kim 2014, "Convolutional Neural Networks for Sentence Classification", CNN-rand: windows of 3, 4 and 5 words,
100 filters of each, max over time, dropout of 0.5. Here a window may begin at any word of a text, and has zeros beyond
its end; words are learned from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray.config.schema import Count, Counts, Share
from cifar_ray.models.architecture import Architecture
from cifar_ray.models.text_network import RECIPES, TextNetwork, layers


class Windows(nn.Module):
    """What filters find in the windows that begin at each word; (B, T, dim) to (B, T, filters of all widths)."""

    def __init__(self, dim: int, filters: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = widths
        self.convolutions = nn.ModuleList(nn.Conv1d(dim, filters, width) for width in widths)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x.masked_fill(~mask[..., None], 0).transpose(1, 2)
        found = [each(F.pad(x, [0, width - 1])) for each, width in zip(self.convolutions, self.widths)]
        return torch.cat(found, dim=1).transpose(1, 2).relu()


def build(
    vocabulary: int,
    length: int,
    classes: int,
    *,
    dim: Annotated[Count, "Embedding size"] = 128,
    filters: Annotated[Count, "Filters of each width"] = 100,
    widths: Annotated[Counts, "Widths of the filters, in tokens"] = (3, 4, 5),
    dropout: Annotated[Share, "Dropout rate before the last layer"] = 0.5,
) -> nn.Module:
    """The network, whose keywords are its options."""
    return TextNetwork(
        nn.Embedding(vocabulary, dim, padding_idx=0),
        [Windows(dim, filters, widths)],
        nn.Sequential(nn.Dropout(dropout), nn.Linear(filters * len(widths), classes)),
    )


MODEL = Architecture(build, RECIPES, layers, inputs="tokens")
