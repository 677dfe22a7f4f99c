"""Image files, and images that arrive as bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from cifar_ray.config.errors import ConfigError

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is read, by Pillow's names. Others are rare, and one of them (EPS) starts another program."""

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")  # as ImageFolder's

MAX_PIXELS = 100_000_000  # more are not decoded: a header may name a size that would take all memory

# What Pillow remarks on a file that it reads all the same concerns nobody here; it also warns of far fewer pixels.
warnings.filterwarnings("ignore", module=r"PIL\.")

_REASONS: dict[type[Exception], str] = {
    UnidentifiedImageError: "it is not an image",
    Image.DecompressionBombError: f"it has too many pixels; at most {MAX_PIXELS:,} are read",
}


class UnreadableError(ConfigError):
    """An image that cannot be read."""


@contextmanager
def opened(source: Path | BinaryIO) -> Iterator[ImageFile.ImageFile]:
    """Context manager: open an image; any error within is an :class:`UnreadableError` that names its file."""
    try:
        with Image.open(source, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError  # as Pillow itself, of more
            yield image
    except Exception as error:  # on damaged files the decoders raise whatever comes
        known = getattr(error, "problem", "") or getattr(error, "strerror", "")
        reason = known or _REASONS.get(type(error), "it is truncated or damaged")
        name = f"cannot read image {source}: " if isinstance(source, Path) else ""
        raise UnreadableError("", f"{name}{reason}") from None


def read(source: Path | BinaryIO) -> Image.Image:
    """The decoded image, the first of several, as :func:`upright`; an :class:`UnreadableError` says why there is none.

    It is decoded whole, by training as by predictions: a JPEG that is decoded to a part of its size has other pixels.
    """
    with opened(source) as file:
        return upright(file)


def upright(image: Image.Image) -> Image.Image:
    """The image as ``RGB``, or grey (``L``) if it has 16 bits, turned as its EXIF data say."""
    ImageOps.exif_transpose(image, in_place=True)  # a copy of a photo takes as long as half of its decoding
    if image.mode.startswith("I;16"):
        # The upper byte, which Pillow itself takes of 16-bit colours; `convert` would make 256 and above white.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UnreadableError("", "its grey values have no known white; save it with 8 bits per pixel")
    return image if image.mode == "RGB" else image.convert("RGB")


def cropped(image: Image.Image, side: int) -> np.ndarray:
    """The centre of an ``RGB`` or grey image with its shorter side resized to ``side``: uint8, (side, side, 3)."""
    return np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR).convert("RGB"))


def png(image: Image.Image) -> bytes:
    """The image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return file.getvalue()
