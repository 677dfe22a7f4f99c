"""Images with masks of their pixels' classes, ``--dataset masks:PATH``.

PATH/train/, test/ and perhaps val/ have images/ and masks/: to images/a/b.jpg belongs masks/a/b.png, a PNG file as
large as its image with the number of each pixel's class, as grey values or in a palette.
PATH/classes.txt names the classes, one a line from number 0 on; without it, the training masks tell how many there are.
"""

from __future__ import annotations

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

_STRETCHED = {"L;2": 85, "L;4": 17}  # Pillow multiplies grey values of 2 and 4 bits so that the highest is white


class Masks(folders.Halves):
    """A folder of images with masks; a sample is the paths of both."""

    column = Segmentation.target

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        if "test" not in self.halves:
            raise unusable(f"must have train/ and test/, each with images/ and masks/, and {self.root} has not")
        self.parts = {part: self._pairs(folder) for part, folder in self.halves.items()}
        self.left_out = folders.in_words(self.others, *self.notes)
        listed = self.root / "classes.txt"
        if listed.is_file():
            names = [line.strip() for line in listed.read_text("utf-8-sig", "replace").rstrip().splitlines()]
        else:
            with ThreadPoolExecutor() as pool:
                masks = pool.map(_numbers, (mask for _, mask in self.parts["train"].samples))
                highest = max(int(each.max(initial=0, where=each != IGNORED)) for each in masks)
            names = [*map(str, range(highest + 1))]
        if not 2 <= len(names) <= IGNORED or len({*names}) < len(names) or not all(names):
            raise unusable(f"must have two classes or more in masks, or a name for each of 2 to {IGNORED} in {listed}")
        self.classes = tuple(names)

    def _pairs(self, part: Path) -> Part:
        """The images of a part with their masks."""
        root, of_masks = part / "images", dict[Path, str]()
        for image in folders.images(root, self.others):
            mask = part / "masks" / Path(image).relative_to(root).with_suffix(".png")
            if mask in of_masks or not mask.is_file():
                raise unusable(f"must have a mask for every image, and {image} has none of its own as {mask}")
            of_masks[mask] = image
        return Part([(image, str(mask)) for mask, image in of_masks.items()], np.zeros(len(of_masks), np.int64))

    def read(self, sample: tuple[str, str], side: int) -> np.ndarray:
        """The centre of an image and of its mask, by its nearest pixels; see :class:`Source`."""
        (image, mask), classes = sample, len(self.classes)
        numbers = _numbers(mask)
        if (unknown := numbers[(numbers >= classes) & (numbers != IGNORED)]).size:
            raise unusable(f"must have numbers below {classes}, or {IGNORED}, in masks, and {mask} has {unknown.min()}")
        return beside(image, mask, numbers, side)


SOURCE = Masks


def _numbers(path: str) -> np.ndarray:
    """The numbers of a mask's pixels: uint8, (height, width), with 255 where they do not count."""
    with imagefiles.opened(Path(path)) as mask:
        stored = mask.tile[0].args if mask.tile else ""
        if mask.format != "PNG" or mask.mode not in ("L", "P", "1"):
            raise imagefiles.UnreadableError("", "it is no PNG file of one 8-bit number a pixel, as masks are")
        numbers = np.asarray(mask)
    return numbers.astype(np.uint8) // np.uint8(_STRETCHED.get(str(stored), 1))


def beside(image: str, mask: str, numbers: np.ndarray, side: int) -> np.ndarray:
    """The centre of an image and of the numbers of its pixels' classes, which ``mask`` has: uint8, (side, side, 4).

    An image that its EXIF data turn has a mask that fits it once turned, or one that fits its file and is turned alike.
    """
    with imagefiles.opened(Path(image)) as file:
        stored, turn = file.size, file.getexif().get(ExifTags.Base.Orientation, 1)
        pixels = imagefiles.upright(file)
    laid = Image.fromarray(numbers)
    if laid.size == stored and turn in range(2, 9):
        if stored == pixels.size:
            raise unusable(f"must have photos that no EXIF data turn where masks fit both ways, as {mask} fits {image}")
        laid.getexif()[ExifTags.Base.Orientation] = turn
        laid = ImageOps.exif_transpose(laid)
    if pixels.size != laid.size:
        raise unusable(f"must have masks as large as images, and {mask} has {laid.size} pixels, {image} {pixels.size}")
    cropped = ImageOps.fit(laid, (side, side), Image.Resampling.NEAREST)
    return np.dstack([imagefiles.cropped(pixels, side), np.asarray(cropped)])
