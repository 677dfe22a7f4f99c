"""Images with masks of their pixels' classes, ``--dataset masks:PATH``.

PATH/train/ and PATH/test/, and perhaps val/, have images/ and masks/: to images/a/b.jpg belongs masks/a/b.png. A mask
is a PNG file as large as its image with the number of each pixel's class, as grey values or in a palette.
PATH/classes.txt names the classes, one a line from number 0 on; without it, the training masks tell how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import folders, imagefiles
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Part
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.tasks.spec import IGNORED

_MODES = ("L", "P", "1")
"""Pillow's modes of one number for a pixel, of at most 8 bits."""

_STRETCHED = {"L;2": 85, "L;4": 17}
"""What Pillow multiplies grey values of 2 and 4 bits by, so that the highest is white."""


class Masks(folders.Halves):
    """A folder of images with masks; a sample is the paths of both."""

    column = Segmentation.target

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        if "test" not in self.halves:
            raise unusable(f"must have train/ and test/, each with images/ and masks/, and {self.root} has not")
        left_out = Counter[str]()
        pairs = {part: _pairs(folder, left_out) for part, folder in self.halves.items()}
        self.parts = {part: Part(each, np.zeros(len(each), np.int64)) for part, each in pairs.items()}
        self.classes = _names(self.root, pairs["train"])
        self.left_out = "; ".join(filter(None, (folders.in_words(left_out), *self.unused)))

    def read(self, sample: tuple[str, str], side: int) -> np.ndarray:
        """The centre of an image and of its mask, resized to ``side``; the mask by its nearest pixels.

        Raises:
            ConfigError: naming the file when one cannot be read, or the mask does not fit the image or the classes.
        """
        (image, mask), classes = sample, len(self.classes)
        numbers = _numbers(Path(mask))
        if (unknown := numbers[(numbers >= classes) & (numbers != IGNORED)]).size:
            rule = f"must have the numbers of {classes} classes, 0 to {classes - 1}, or {IGNORED} in masks"
            raise unusable(f"{rule}, and {mask} has {unknown.min()}")
        return beside(image, mask, numbers, side)


SOURCE = Masks


def _names(root: Path, train: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The names of the classes; without a list of them their numbers, up to the highest in a training mask."""
    listed = root / "classes.txt"
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
        raise unusable(f"{rule}, and {root} has not")
    return tuple(map(str, range(highest + 1)))


def _pairs(part: Path, left_out: Counter[str]) -> list[tuple[str, str]]:
    """The images of a part with their masks; other files are counted in ``left_out`` by the end of their names."""
    for needed in ("images", "masks"):
        if not (part / needed).is_dir():
            raise unusable(f"must have images/ and masks/ in {part}, which has no {needed}/")
    images, masks = (_by_name(part / kind, left_out) for kind in ("images", "masks"))
    if not images:
        raise unusable(f"must have an image in {part / 'images'}, which has none")
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
