"""Samples as people give them to a trained model and see them: image files, texts, numbers by name; and masks."""

from __future__ import annotations

import abc
import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from cifar_ray.config.facts import Facts, Inputs
from cifar_ray.data import imagefiles, tokens
from cifar_ray.data.datasets import to_model_size
from cifar_ray.tasks.spec import IGNORED

if TYPE_CHECKING:  # readers of records do without torch
    from torch import Tensor

_SIDE = 64  # pixels of an image that is drawn, at most: a report reads every run's
_CHARACTERS = 240  # of a text that is drawn, at most


class Samples(abc.ABC):
    """Samples of one modality, of a data set with these facts.

    Attributes:
        package: what a program needs to read them, beside torch and NumPy.
        encoding: of texts, their tokenizer as JSON.
    """

    package: ClassVar[str]

    def __init__(self, facts: Facts, encoding: str = "") -> None:
        self.facts, self.encoding = facts, encoding

    @property
    def is_readable(self) -> bool:
        """Whether people can give and see them; else a function of the user's own has made numbers of them."""
        return True

    @property
    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """What a program needs to know to read them, for JSON."""

    @abc.abstractmethod
    def given(self, row: np.ndarray) -> dict[str, Any]:
        """One sample of the data set as people give it, by name."""

    def drawn(self, row: np.ndarray) -> dict[str, str]:
        """One sample for a picture or a table: ``png``, a small image in base64, or ``text``; nothing of others."""
        return {}


class _Images(Samples):
    package = "pillow"

    @property
    def settings(self) -> dict[str, Any]:
        facts = self.facts
        return {"side": facts.image_size, "native_side": facts.native_size, "grey": facts.grey, "crop": facts.crop}

    def given(self, row: np.ndarray) -> dict[str, Any]:
        return {"image": _png(Image.fromarray(row))}

    def drawn(self, row: np.ndarray) -> dict[str, str]:
        image = Image.fromarray(row)
        image.thumbnail((_SIDE, _SIDE))
        return {"png": base64.b64encode(_png(image)).decode()}


class _Texts(Samples):
    package = "tokenizers"

    @property
    def is_readable(self) -> bool:
        return bool(self.encoding)

    @property
    def settings(self) -> dict[str, Any]:
        return {"length": self.facts.length}

    def given(self, row: np.ndarray) -> dict[str, Any]:
        return {"text": tokens.decode(self.encoding, row)}

    def drawn(self, row: np.ndarray) -> dict[str, str]:
        text = " ".join(tokens.decode(self.encoding, row).split())
        shortened = f"{text[: _CHARACTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
        return {"text": text if len(text) <= _CHARACTERS else shortened}


class _Rows(Samples):
    package = "pandas"

    @property
    def settings(self) -> dict[str, Any]:
        return {"features": [*self.facts.feature_names]}

    def given(self, row: np.ndarray) -> dict[str, Any]:
        return dict(zip(self.facts.feature_names, map(float, row)))


_KINDS: dict[Inputs, type[Samples]] = {"images": _Images, "tokens": _Texts, "features": _Rows}


def of(facts: Facts, encoding: str = "") -> Samples:
    """The samples of a data set; ``encoding`` is its own (:class:`cifar_ray.data.Dataset`)."""
    return _KINDS[facts.inputs](facts, encoding)


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return file.getvalue()


def batch(facts: Facts, images: Sequence[Image.Image]) -> Tensor:
    """Images as the input of a model of that data set: scaled to its images' size, and made grey if they are.

    Returns:
        uint8, (N, side, side, 3), channels last.
    """
    import torch

    if facts.crop:
        return torch.from_numpy(np.stack([imagefiles.cropped(image, facts.image_size) for image in images]))
    size = (facts.native_size, facts.native_size)
    pixels = [image.convert("L" if facts.grey else "RGB").resize(size) for image in images]
    return torch.from_numpy(to_model_size(facts, np.stack([np.asarray(image) for image in pixels])))


def mask_png(mask: np.ndarray, size: tuple[int, int]) -> bytes:
    """A predicted mask as a PNG file, as large as the image whose centre the model was given.

    Its pixels are the numbers of classes, with a palette to look at them, and 255 beside the centre.

    Args:
        mask: uint8, (side, side).
        size: width and height of the image.
    """
    side = min(size)
    whole = Image.new("L", size, IGNORED)
    centre = Image.fromarray(mask).resize((side, side), Image.Resampling.NEAREST)
    whole.paste(centre, ((size[0] - side) // 2, (size[1] - side) // 2))
    whole.putpalette(palette().tobytes())
    return _png(whole)


def palette() -> np.ndarray:
    """A colour for each number, those of the Pascal VOC data set: uint8, (256, 3)."""
    numbers, channels = np.arange(256)[:, None], np.arange(3)
    bits = [((numbers >> (3 * turn + channels)) & 1) << (7 - turn) for turn in range(8)]
    return np.sum(bits, axis=0).astype(np.uint8)
