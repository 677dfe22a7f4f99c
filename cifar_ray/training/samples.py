"""Images as a model takes them, and the masks that it gives, as files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from cifar_ray.config.facts import Facts
from cifar_ray.data import imagefiles
from cifar_ray.data.datasets import to_model_size
from cifar_ray.tasks.spec import IGNORED

if TYPE_CHECKING:  # readers of records do without torch
    from torch import Tensor


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
    return imagefiles.png(whole)


def palette() -> np.ndarray:
    """A colour for each number, those of the Pascal VOC data set: uint8, (256, 3)."""
    numbers, channels = np.arange(256)[:, None], np.arange(3)
    bits = [((numbers >> (3 * turn + channels)) & 1) << (7 - turn) for turn in range(8)]
    return np.sum(bits, axis=0).astype(np.uint8)
