"""What follows from what a model is given of a sample: images, rows of features, or tokens of texts."""

from __future__ import annotations

import abc
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from cifar_ray.config.facts import Facts, Inputs
from cifar_ray.data import tokens
from cifar_ray.data.datasets import as_tensor

EVALUATION_BATCH = {"cpu": 128, "cuda": 512}
"""Test samples per forward pass; of images above 64x64 pixels, as many as have as many pixels. ResNet on one thread of
an AMD EPYC took 0.9 CPU seconds for 2,560 images with 128 at once, 1.3 with 256, 1.9 with 512 (medians, n = 3)."""
_USUAL_SIDE = 64


class Modality(abc.ABC):
    """One of :data:`~cifar_ray.config.facts.Inputs`, with the facts of a data set.

    Attributes:
        arguments: by what names a function that builds a model is given the sizes of a data set, in this order.
        varies: whether samples are augmented, and normalised as ``--normalise`` says.
        learned_of: what a task learns of, in words.
    """

    arguments: ClassVar[tuple[str, ...]]
    varies: ClassVar[bool] = False
    learned_of: ClassVar[str]

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The values of ``arguments``."""

    @abc.abstractmethod
    def normaliser(self) -> nn.Module:
        """What makes of a data set's inputs what its models take."""

    def example(self, count: int, device: torch.device | str | None = None) -> Tensor:
        """So many samples of noise from torch's generator, as a model takes them: (count, ``*facts.shape``)."""
        return torch.rand((count, *self.facts.shape), device=device)

    def at_once(self, device: torch.device) -> int:
        """Samples in one forward pass of an evaluation."""
        return EVALUATION_BATCH[device.type]

    def shown(self, inputs: Tensor) -> Tensor:
        """Rows of a data set's inputs (B, ...) as an evaluation shows them to the normaliser."""
        return inputs


class _Images(Modality):
    arguments = ("image_size", "channels", "classes")
    varies = True
    learned_of = "whole images"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.facts.image_size, self.facts.shape[0], self.facts.num_classes

    def normaliser(self) -> nn.Module:
        return Normalise(self.facts.mean, self.facts.std, self.facts.image_size)

    def at_once(self, device: torch.device) -> int:
        share = min(1.0, (_USUAL_SIDE / self.facts.image_size) ** 2)
        return max(int(super().at_once(device) * share), 1)


class _Features(Modality):
    arguments = ("features", "classes")
    learned_of = "rows of numbers"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.facts.length, self.facts.num_classes

    def normaliser(self) -> nn.Module:
        return Standardise(self.facts.mean, self.facts.std)


class _Tokens(Modality):
    arguments = ("vocabulary", "length", "classes")
    learned_of = "texts"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.facts.vocabulary, self.facts.length, self.facts.num_classes

    def normaliser(self) -> nn.Module:
        return Tokens()

    def example(self, count: int, device: torch.device | str | None = None) -> Tensor:
        return torch.randint(1, self.facts.vocabulary, (count, *self.facts.shape), device=device)

    def shown(self, inputs: Tensor) -> Tensor:
        return as_tensor(tokens.cut(inputs.numpy()))


KINDS: dict[Inputs, type[Modality]] = {"images": _Images, "features": _Features, "tokens": _Tokens}
assert tuple(KINDS) == get_args(Inputs)


def of(facts: Facts) -> Modality:
    """The modality of a data set."""
    return KINDS[facts.inputs](facts)


class Normalise(nn.Module):
    """Pixels as the models get them: zero mean and unit variance over the training images.

    Maps uint8 (B, H, W, C) to float32 (B, C, H, W) in channels-last memory order.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], side: int) -> None:
        super().__init__()
        means, stds = torch.tensor(mean), torch.tensor(std)
        # One value for each number of an image: broadcasting over 3 channels takes 9 times as long on a CPU.
        self.register_buffer("scale", (1 / (255 * stds)).repeat(side**2), persistent=False)
        self.register_buffer("shift", (-means / stds).repeat(side**2), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1).float().mul_(self.scale).add_(self.shift)
        return flat.view(images.shape).permute(0, 3, 1, 2)


class Standardise(nn.Module):
    """Features with zero mean and unit variance over the training rows, 0 where they are all the same there.

    Maps float32 or float64 (B, length) to float32: only what is standardised in float64 keeps times and ids apart.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64), persistent=False)
        stds = torch.tensor(std, dtype=torch.float64)
        self.register_buffer("std", torch.where(stds > 0, stds, torch.inf), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows - self.mean) / self.std).float()


class Tokens(nn.Module):
    """Tokens as an embedding takes them: int64 (B, length)."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.long()
