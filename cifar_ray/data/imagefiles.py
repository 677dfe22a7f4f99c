"""Image files, and images that arrive as bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from cifar_ray.config.errors import ConfigError

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is read, by Pillow's names. Others are rare, and one of them (EPS) starts another program."""

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Ends of the names of images in a folder; torchvision's ImageFolder looks for the same ones."""

MAX_PIXELS = 100_000_000
"""An image with more is not decoded: its header may name a size that would take all memory."""

# What Pillow remarks on a file that it reads all the same concerns nobody here; it also warns of far fewer pixels.
warnings.filterwarnings("ignore", module=r"PIL\.")


_MOST_NAMED = 10  # images that cannot be read


class ImageError(ValueError):
    """Why an image cannot be read, in words that follow the image's name."""


class UnreadableError(ConfigError):
    """An image that cannot be read; ``what`` names it and says why."""

    def __init__(self, name: object, reason: object) -> None:
        self.what = f"{name}: {reason}"
        super().__init__("", f"cannot read image {self.what}")


@contextmanager
def opened(source: Path | BinaryIO) -> Iterator[ImageFile.ImageFile]:
    """Context manager: open an image; any error within is an :class:`ImageError`."""
    try:
        with Image.open(source, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ImageError(f"it has too many pixels; at most {MAX_PIXELS:,} are read")
            yield image
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError("it is not an image") from None
    except Exception as error:  # on damaged files the decoders raise whatever comes
        raise ImageError(getattr(error, "strerror", "") or "it is truncated or damaged") from None


def refuse(errors: Sequence[UnreadableError], total: int) -> None:
    """Refuse images that cannot be read, of so many, if there are any.

    Raises:
        ConfigError: naming the first ten of them, and their number.
    """
    if len(errors) == 1:
        raise errors[0]
    if errors:
        first = "; ".join(sorted(error.what for error in errors)[:_MOST_NAMED])
        more = f"; and {len(errors) - _MOST_NAMED:,} more" * (len(errors) > _MOST_NAMED)
        raise ConfigError("", f"cannot read {len(errors):,} of {total:,} images: {first}{more}")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Context manager: name the file in an error about its image."""
    try:
        yield
    except ImageError as error:
        raise UnreadableError(path, error) from None


def read(source: Path | BinaryIO) -> Image.Image:
    """The decoded image, as :func:`upright`; the first one if there are several.

    It is decoded whole, by training as by predictions: a JPEG that is decoded to a part of its size has other pixels.

    Raises:
        ImageError: when it cannot be read, is not an image, is damaged, has too many pixels, or has
            numbers (modes ``I`` and ``F``) in place of shades.
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
        raise ImageError("its grey values have no known white; save it with 8 bits per pixel")
    return image if image.mode == "RGB" else image.convert("RGB")


def square(path: Path, side: int) -> np.ndarray:
    """The image of a file as :func:`cropped` makes it.

    Raises:
        ConfigError: naming the file, as :func:`named`.
    """
    with named(path):
        return cropped(read(path), side)


def cropped(image: Image.Image, side: int) -> np.ndarray:
    """The centre of an ``RGB`` or grey image with its shorter side resized to ``side``: uint8, (side, side, 3)."""
    return np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR).convert("RGB"))
