"""What follows from what a model is given of a sample: images, rows of features, or tokens of texts."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from cifar_ray.config.facts import Facts, Inputs
from cifar_ray.data import imagefiles, tokens
from cifar_ray.data.datasets import as_tensor

_USUAL_SIDE = 64
_DRAWN_SIDE = 64  # pixels of an image that is drawn, at most: a report reads every run's
_CHARACTERS = 240  # of a text that is drawn, at most


class Modality(ABC):
    """One of :data:`~cifar_ray.config.facts.Inputs`, with the facts of a data set.

    Attributes:
        arguments: by what names a function that builds a model is given the sizes of a data set, in this order.
        varies: whether samples are augmented, and normalised as ``--normalise`` says.
        package: what a program needs to read samples, beside torch and NumPy.
        encoding: of texts, their tokenizer as JSON.
    """

    arguments: ClassVar[tuple[str, ...]]
    varies: ClassVar[bool] = False
    package: ClassVar[str]
    _normaliser: ClassVar[type[nn.Module]]

    def __init__(self, facts: Facts, encoding: str = "") -> None:
        self.facts, self.encoding = facts, encoding

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

    @property
    def is_readable(self) -> bool:
        """Whether people can give and see samples; else a function of the user's own has made numbers of them."""
        return True

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What a program needs to know to read samples, for JSON."""

    @abstractmethod
    def given(self, row: np.ndarray) -> dict[str, Any]:
        """One sample of the data set as people give it, by name."""

    def drawn(self, row: np.ndarray) -> dict[str, str]:
        """One sample for a picture or a table: ``png``, a small image in base64, or ``text``; nothing of others."""
        return {}


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
    arguments, varies, package = ("image_size", "channels", "classes"), True, "pillow"
    _normaliser = Normalise

    @property
    def settings(self) -> dict[str, Any]:
        facts = self.facts
        return {"side": facts.image_size, "native_side": facts.native_size, "grey": facts.grey, "crop": facts.crop}

    def at_once(self, usual: int) -> int:
        return max(int(usual * min(1.0, (_USUAL_SIDE / self.facts.image_size) ** 2)), 1)

    def given(self, row: np.ndarray) -> dict[str, Any]:
        return {"image": imagefiles.png(Image.fromarray(row))}

    def drawn(self, row: np.ndarray) -> dict[str, str]:
        image = Image.fromarray(row)
        image.thumbnail((_DRAWN_SIDE, _DRAWN_SIDE))
        return {"png": base64.b64encode(imagefiles.png(image)).decode()}


class _Features(Modality):
    arguments, package, _normaliser = ("features", "classes"), "pandas", Standardise

    @property
    def settings(self) -> dict[str, Any]:
        return {"features": [*self.facts.feature_names]}

    def given(self, row: np.ndarray) -> dict[str, Any]:
        return dict(zip(self.facts.feature_names, map(float, row)))


class _Tokens(Modality):
    arguments, package, _normaliser = ("vocabulary", "length", "classes"), "tokenizers", AsLong

    @property
    def is_readable(self) -> bool:
        return bool(self.encoding)

    @property
    def settings(self) -> dict[str, Any]:
        return {"length": self.facts.length}

    def example(self, count: int, device: torch.device | str | None = None) -> Tensor:
        return torch.randint(1, self.facts.vocabulary, (count, *self.facts.shape), device=device)

    def shown(self, inputs: Tensor) -> Tensor:
        return as_tensor(tokens.cut(inputs.numpy()))

    def given(self, row: np.ndarray) -> dict[str, Any]:
        return {"text": tokens.decode(self.encoding, row)}

    def drawn(self, row: np.ndarray) -> dict[str, str]:
        text = " ".join(tokens.decode(self.encoding, row).split())
        shortened = f"{text[: _CHARACTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
        return {"text": text if len(text) <= _CHARACTERS else shortened}


KINDS: dict[Inputs, type[Modality]] = {"images": _Images, "features": _Features, "tokens": _Tokens}


def of(facts: Facts, encoding: str = "") -> Modality:
    """The modality of a data set; ``encoding`` is its own (:class:`cifar_ray.data.Dataset`)."""
    return KINDS[facts.inputs](facts, encoding)
