"""Convolutions over words, each filter's largest answer in a text, and a linear layer.

Source: Kim 2014, "Convolutional Neural Networks for Sentence Classification", CNN-rand: windows of 3, 4 and 5 words,
100 filters of each, max over time, dropout of 0.5. Here a window may begin at any word of a text, and has zeros beyond
its end; words are learned from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import DatasetSpec
from cifar_ray.models.architecture import Recipe
from cifar_ray.models.text_network import TextNetwork

RECIPES = (Recipe(optimizer="adamw", lr=3e-3, weight_decay=0.01, warmup_epochs=0.5, base_batch=32),)


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


def build(config: TrainConfig, spec: DatasetSpec) -> nn.Module:
    """The network that ``config.textcnn`` describes."""
    options = config.textcnn
    return TextNetwork(
        nn.Embedding(spec.vocabulary, options.dim, padding_idx=0),
        [Windows(options.dim, options.filters, options.widths)],
        nn.Sequential(nn.Dropout(options.dropout), nn.Linear(options.filters * len(options.widths), spec.num_classes)),
    )
