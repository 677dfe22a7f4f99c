"""What follows from what a model is given of a sample: images, rows of features, or tokens of texts."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from cifar_ray.config.facts import Facts, Inputs
from cifar_ray.data import tokens
from cifar_ray.data.datasets import as_tensor

_USUAL_SIDE = 64


class Modality:
    """One of :data:`~cifar_ray.config.facts.Inputs`, with the facts of a data set.

    Attributes:
        arguments: by what names a function that builds a model is given the sizes of a data set, in this order.
        varies: whether samples are augmented, and normalised as ``--normalise`` says.
    """

    arguments: ClassVar[tuple[str, ...]]
    varies: ClassVar[bool] = False
    _normaliser: ClassVar[type[nn.Module]]

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @property
    def sizes(self) -> tuple[int, ...]:
        """The values of ``arguments``."""
        facts = self.facts
        known = {"image_size": facts.image_size, "classes": facts.num_classes, "vocabulary": facts.vocabulary}
        known |= dict.fromkeys(("channels", "features", "length"), facts.length)
        return tuple(known[name] for name in self.arguments)

    def normaliser(self) -> nn.Module:
        """What makes of a data set's inputs what its models take."""
        return self._normaliser(self.facts)

    def example(self, count: int, device: torch.device | str | None = None) -> Tensor:
        """So many samples of noise from torch's generator, as a model takes them: (count, ``*facts.shape``)."""
        return torch.rand((count, *self.facts.shape), device=device)

    def at_once(self, usual: int) -> int:
        """Samples in one forward pass of an evaluation, where that many usual ones fit well."""
        return usual

    def shown(self, inputs: Tensor) -> Tensor:
        """Rows of a data set's inputs (B, ...) as an evaluation shows them to the normaliser."""
        return inputs


class Normalise(nn.Module):
    """Pixels as the models get them: zero mean and unit variance over the training images.

    Maps uint8 (B, H, W, C) to float32 (B, C, H, W) in channels-last memory order.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        mean, std, pixels = torch.tensor(facts.mean), torch.tensor(facts.std), facts.image_size**2
        # One value for each number of an image: broadcasting over 3 channels takes 9 times as long on a CPU.
        self.register_buffer("scale", (1 / (255 * std)).repeat(pixels), persistent=False)
        self.register_buffer("shift", (-mean / std).repeat(pixels), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1).float().mul_(self.scale).add_(self.shift)
        return flat.view(images.shape).permute(0, 3, 1, 2)


class Standardise(nn.Module):
    """Features with zero mean and unit variance over the training rows, 0 where they are all the same there.

    Maps float32 or float64 (B, length) to float32: only what is standardised in float64 keeps times and ids apart.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        mean, std = (torch.tensor(each, dtype=torch.float64) for each in (facts.mean, facts.std))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", torch.where(std > 0, std, torch.inf), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows - self.mean) / self.std).float()


class AsLong(nn.Identity):
    """Tokens as an embedding takes them: int64 (B, length)."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.long()


class _Images(Modality):
    arguments, varies, _normaliser = ("image_size", "channels", "classes"), True, Normalise

    def at_once(self, usual: int) -> int:
        return max(int(usual * min(1.0, (_USUAL_SIDE / self.facts.image_size) ** 2)), 1)


class _Features(Modality):
    arguments, _normaliser = ("features", "classes"), Standardise


class _Tokens(Modality):
    arguments, _normaliser = ("vocabulary", "length", "classes"), AsLong

    def example(self, count: int, device: torch.device | str | None = None) -> Tensor:
        return torch.randint(1, self.facts.vocabulary, (count, *self.facts.shape), device=device)

    def shown(self, inputs: Tensor) -> Tensor:
        return as_tensor(tokens.cut(inputs.numpy()))


KINDS: dict[Inputs, type[Modality]] = {"images": _Images, "features": _Features, "tokens": _Tokens}


def of(facts: Facts) -> Modality:
    """The modality of a data set."""
    return KINDS[facts.inputs](facts)
