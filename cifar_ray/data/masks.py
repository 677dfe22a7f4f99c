"""Images with masks of their pixels' classes, ``--dataset masks:PATH``.

PATH/train/ and PATH/test/, and perhaps val/, have images/ and masks/: to images/a/b.jpg belongs masks/a/b.png. A mask
is a PNG file as large as its image with the number of each pixel's class, as grey values or in a palette.
PATH/classes.txt names the classes, one a line from number 0 on; without it, the training masks tell how many there are.
"""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from cifar_ray.data import folders, imagefiles
from cifar_ray.data.datasets import unusable
from cifar_ray.data.folders import Folder
from cifar_ray.data.source import Found, Part
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.tasks.spec import IGNORED

_MODES = ("L", "P", "1")
"""Pillow's modes of one number for a pixel, of at most 8 bits."""

_STRETCHED = {"L;2": 85, "L;4": 17}
"""What Pillow multiplies grey values of 2 and 4 bits by, so that the highest is white."""


@dataclass(frozen=True)
class Masks(Folder):
    """A folder of images with masks."""

    def find(self) -> Found:
        halves, left_out = self.halves(), Counter[str]()
        if "test" not in halves.parts:
            raise unusable(f"must have train/ and test/, each with images/ and masks/, and {self.root} has not")
        pairs = {part: _pairs(folder, left_out) for part, folder in halves.parts.items()}
        names = self._names(pairs["train"])
        parts = {
            part: Part(each, np.zeros(len(each), np.int64), (halves.parts[part], len(names)))
            for part, each in pairs.items()
        }
        return Found(names, parts, Segmentation.target, left_out=folders.in_words(left_out, halves))

    def keys(self, part: Part, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        return super().keys(dataclasses.replace(part, reader=part.reader[0]), labels, option)

    def files(self, part: Part, row: int) -> tuple[str, ...]:
        image, mask = part.samples[row]
        return image, mask

    def read(self, part: Part, row: int, side: int) -> np.ndarray:
        """The centre of an image and of its mask, resized to ``side``; the mask by its nearest pixels.

        Raises:
            ConfigError: naming the file when one cannot be read, or the mask does not fit the image or the classes.
        """
        (image, mask), classes = part.samples[row], part.reader[1]
        numbers = _numbers(Path(mask))
        if (unknown := numbers[(numbers >= classes) & (numbers != IGNORED)]).size:
            rule = f"must have the numbers of {classes} classes, 0 to {classes - 1}, or {IGNORED} in masks"
            raise unusable(f"{rule}, and {mask} has {unknown.min()}")
        return beside(image, mask, numbers, side)

    def _names(self, train: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """The names of the classes; without a list of them their numbers, up to the highest in a training mask."""
        listed = self.root / "classes.txt"
        if listed.is_file():
            text = listed.read_text(encoding="utf-8-sig", errors="replace").rstrip()  # some editors begin with a mark
            names = [line.strip() for line in text.splitlines()]
            if not 2 <= len(names) <= IGNORED or len(set(names)) < len(names) or not all(names):
                raise unusable(f"must have a name of its own for each of 2 to {IGNORED} classes in {listed}")
            return tuple(names)
        with ThreadPoolExecutor() as pool:
            every = pool.map(lambda pair: _numbers(Path(pair[1])), train)
            highest = max(int(numbers.max(initial=0, where=numbers != IGNORED)) for numbers in every)
        if highest < 1:
            rule = f"must have at least two classes in its training masks, beside {IGNORED}, which does not count"
            raise unusable(f"{rule}, and {self.root} has not")
        return tuple(map(str, range(highest + 1)))


def _pairs(part: Path, left_out: Counter[str]) -> list[tuple[str, str]]:
    """The images of a part with their masks; other files are counted in ``left_out`` by the end of their names."""
    for needed in ("images", "masks"):
        if not (part / needed).is_dir():
            raise unusable(f"must have images/ and masks/ in {part}, which has no {needed}/")
    images, masks = (_by_name(part / kind, left_out) for kind in ("images", "masks"))
    if not images:
        raise unusable(f"must have an image in {part / 'images'}, which has none")
    if wrong := next((mask for mask in masks.values() if not mask.lower().endswith(".png")), None):
        raise unusable(f"must have masks as PNG files, and {wrong} is none")
    if lone := next((name for name in images if name not in masks), None):
        raise unusable(f"must have a mask for every image, and {images[lone]} has none in {part / 'masks'}")
    if unpaired := len(masks) - len(images):
        left_out["masks without an image"] += unpaired
    return [(image, masks[name]) for name, image in images.items()]


def _by_name(root: Path, left_out: Counter[str]) -> dict[Path, str]:
    """The image files below a folder, sorted, by what an image and its mask have in common."""
    found: dict[Path, str] = {}
    for path in sorted(folders.images(root, left_out)):
        other = found.setdefault(Path(path).relative_to(root).with_suffix(""), path)
        if other != path:
            raise unusable(f"must have one image and one mask of each name, and there are {other} and {path}")
    return found


def _numbers(path: Path) -> np.ndarray:
    """The numbers of a mask's pixels: uint8, (height, width), with 255 where they do not count."""
    with imagefiles.named(path), imagefiles.opened(path) as mask:
        kind, mode, stored = mask.format, mask.mode, mask.tile[0].args if mask.tile else ""
        numbers = np.asarray(mask)
    if kind != "PNG":
        raise unusable(f"must have masks as PNG files, and {path} is none")
    if mode not in _MODES:
        raise unusable(f"must have masks of one number of 8 bits a pixel, and {path} is {mode}")
    return numbers.astype(np.uint8) // np.uint8(_STRETCHED.get(str(stored), 1))


def beside(image: str, mask: str, numbers: np.ndarray, side: int) -> np.ndarray:
    """The centre of an image and of the numbers of its pixels' classes, which ``mask`` has: uint8, (side, side, 4).

    An image that its EXIF data turn has a mask that fits it once turned, or one that fits its file and is turned alike.
    """
    with imagefiles.named(Path(image)), imagefiles.opened(Path(image)) as file:
        stored, turn = file.size, file.getexif().get(ExifTags.Base.Orientation, 1)
        pixels = imagefiles.upright(file)
    laid = Image.fromarray(numbers)
    if laid.size == stored and turn in range(2, 9):
        if stored == pixels.size:
            raise unusable(
                f"must show whether a mask is turned as its photo, and {mask} fits both ways: EXIF data turn {image}; "
                "save that turned, or without these data"
            )
        laid.getexif()[ExifTags.Base.Orientation] = turn
        laid = ImageOps.exif_transpose(laid)
    if pixels.size != laid.size:
        sizes = [f"{width}x{height}" for width, height in (laid.size, pixels.size)]
        raise unusable(
            f"must have masks as large as their images, and {mask} has {sizes[0]} pixels, {image} {sizes[1]}"
        )
    cropped = ImageOps.fit(laid, (side, side), Image.Resampling.NEAREST)
    return np.dstack([imagefiles.cropped(pixels, side), np.asarray(cropped)])


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
