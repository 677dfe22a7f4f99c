"""Predicted masks as PNG files."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from cifar_ray.tasks.spec import IGNORED


def png(mask: np.ndarray, size: tuple[int, int]) -> bytes:
    """A predicted mask as a PNG file, as large as the image whose centre the model was given.

    Its pixels are the numbers of classes, with a palette to look at them, and 255 beside the centre.

    Args:
        mask: uint8, (side, side).
        size: width and height of the image.
    """
    side, file = min(size), io.BytesIO()
    whole = Image.new("L", size, IGNORED)
    centre = Image.fromarray(mask).resize((side, side), Image.Resampling.NEAREST)
    whole.paste(centre, ((size[0] - side) // 2, (size[1] - side) // 2))
    whole.putpalette(palette().tobytes())
    whole.save(file, "png")
    return file.getvalue()


def palette() -> np.ndarray:
    """A colour for each number, those of the Pascal VOC data set: uint8, (256, 3)."""
    numbers, channels = np.arange(256)[:, None], np.arange(3)
    bits = [((numbers >> (3 * turn + channels)) & 1) << (7 - turn) for turn in range(8)]
    return np.sum(bits, axis=0).astype(np.uint8)
