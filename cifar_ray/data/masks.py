"""Images with masks of their pixels' classes, ``--dataset masks:PATH``, and the masks that a model predicts.

PATH/train/ and PATH/test/, and perhaps val/, have images/ and masks/: to images/a/b.jpg belongs masks/a/b.png. A mask
is a PNG file as large as its image with the number of each pixel's class, as grey values or in a palette.
PATH/classes.txt names the classes, one a line from number 0 on; without it, the training masks tell how many there are.
"""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.data import folders, imagefiles
from cifar_ray.data.datasets import unusable
from cifar_ray.data.folders import Listing
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.tasks.spec import IGNORED

DEFAULT_OUT = "predicted_masks"
"""Folder of the masks that a model predicts."""

_CLASSES = "classes.txt"
_MODES = ("L", "P", "1")
"""Pillow's modes of one number for a pixel, of at most 8 bits."""

_STRETCHED = {"L;2": 85, "L;4": 17}
"""What Pillow multiplies grey values of 2 and 4 bits by, so that the highest is white."""


@functools.cache
def listing(root: Path, val_share: float, ignored: int, stamp: tuple[int, ...] = ()) -> Listing:
    """The images of a folder with the paths of their masks, in the order of their names; see :func:`folders.listing`.

    ``ignored`` is the number of pixels that do not count, beside 255.

    Raises:
        ConfigError: when there is no such folder, or it has another layout, or an image without a mask.
    """
    train, test, val, unused = folders.parts(root)
    if test is None:
        raise unusable(f"must have train/ and test/, each with images/ and masks/, and {root} has not")
    if val is not None and val_share:
        raise ConfigError("val_share", f"is for folders without validation images, and there is {val}")
    left_out: Counter[str] = Counter()
    of = {part: _pairs(part, left_out) for part in filter(None, (train, test, val))}
    names = _names(root, of[train], ignored)
    words = folders.in_words(left_out, unused, test)
    kept = () if val is None else of[val]
    return folders.validated(Listing(names, of[train], of[test], words, kept, Segmentation.target), train, val_share)


def _pairs(part: Path, left_out: Counter[str]) -> tuple[tuple[str, str], ...]:
    """The images of a part with their masks; other files are counted in ``left_out`` by the end of their names."""
    for needed in ("images", "masks"):
        if not (part / needed).is_dir():
            raise unusable(f"must have images/ and masks/ in {part}, which has no {needed}/")
    others: Counter[str] = Counter()
    images = sorted(folders.images(part / "images", left_out))
    masks = set(folders.images(part / "masks", others))
    if not images:
        raise unusable(f"must have an image in {part / 'images'}, which has none")
    if wrong := sorted(mask for mask in masks if not mask.lower().endswith(".png")):
        raise unusable(f"must have masks as PNG files, and {wrong[0]} is none")
    found: dict[str, str] = {}
    for image in images:
        mask = (part / "masks" / Path(image).relative_to(part / "images")).with_suffix(".png")
        if str(mask) not in masks:
            raise unusable(f"must have a mask for every image, and that of {image}, {mask}, is not there")
        if other := found.get(str(mask)):
            raise unusable(f"must have a mask for each image, and {mask} is that of {other} and {image}")
        found[str(mask)] = image
    if unpaired := len(masks - found.keys()):
        others["masks without an image"] += unpaired
    left_out += others
    return tuple((image, mask) for mask, image in found.items())


def _names(root: Path, train: Sequence[tuple[str, str]], ignored: int) -> tuple[str, ...]:
    """The names of the classes; their numbers, up to the highest in a training mask, where there is no list of them."""
    listed = root / _CLASSES
    if listed.is_file():
        text = listed.read_text(encoding="utf-8-sig", errors="replace").rstrip()  # some editors begin with a mark
        names = [line.strip() for line in text.splitlines()]
        if len(names) < 2 or len(names) > IGNORED or len(set(names)) < len(names) or not all(names):
            raise unusable(f"must have a name of its own for each of 2 to {IGNORED} classes in {listed}")
        return tuple(names)
    imagefiles.check([Path(mask) for _, mask in train])
    with ThreadPoolExecutor() as pool:
        highest = max(pool.map(lambda pair: _highest(pair[1], Path(pair[1]).stat().st_ctime_ns, ignored), train))
    if highest < 1:
        raise unusable(
            f"must have at least two classes in its training masks, beside {IGNORED}, which does not count, and {root} "
            "has not"
        )
    return tuple(map(str, range(highest + 1)))


@functools.cache
def _highest(path: str, changed_ns: int, ignored: int) -> int:
    """The highest number of a class in a mask, once in a process for as long as ``changed_ns`` stays."""
    numbers = _numbers(Path(path), ignored)
    return int(numbers.max(initial=0, where=numbers != IGNORED))


def _numbers(path: Path, ignored: int) -> np.ndarray:
    """The numbers of a mask's pixels: uint8, (height, width), with 255 where they do not count."""
    with imagefiles.named(path), imagefiles.opened(path) as mask:
        kind, mode, stored = mask.format, mask.mode, mask.tile[0].args if mask.tile else ""
        numbers = np.asarray(mask)
    if kind != "PNG":
        raise unusable(f"must have masks as PNG files, and {path} is none")
    if mode not in _MODES:
        raise unusable(f"must have masks of one number of 8 bits a pixel, and {path} is {mode}")
    numbers = numbers.astype(np.uint8) // np.uint8(_STRETCHED.get(str(stored), 1))
    return np.where(numbers == ignored, np.uint8(IGNORED), numbers)


def read(image: str, mask: str, side: int, classes: int, ignored: int) -> np.ndarray:
    """The centre of an image and of its mask, resized to ``side``; the mask by its nearest pixels.

    Returns:
        uint8, (side, side, 4): the colours, and the number of each pixel's class.

    Raises:
        ConfigError: naming the file when one cannot be read, or the mask does not fit the image or the classes.
    """
    numbers = _numbers(Path(mask), ignored)
    if (unknown := numbers[(numbers >= classes) & (numbers != IGNORED)]).size:
        raise unusable(
            f"must have the numbers of {classes} classes, 0 to {classes - 1}, or {IGNORED} in masks, and {mask} has "
            f"{unknown.min()}"
        )
    return beside(image, mask, numbers, side)


def beside(image: str, mask: str, numbers: np.ndarray, side: int) -> np.ndarray:
    """The centre of an image and of the numbers of its pixels' classes, as :func:`read`, which ``mask`` has.

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


def places(
    images: Sequence[Path], given: Sequence[Path], out: Path | None, overwrite: bool = False
) -> dict[Path, Path]:
    """The file of each image's mask: as the image is named, below the folder that was ``given``, but .png, in ``out``.

    Raises:
        ConfigError: when two have one file, or one is an image, or ``out`` has files and ``overwrite`` is not given.
    """
    out = out or Path(DEFAULT_OUT)
    roots = [path for path in given if path.is_dir()]
    found: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for image in images:
        root = next((path for path in roots if image.is_relative_to(path)), image.parent)
        found[image] = (out / image.relative_to(root)).with_suffix(".png")
        other = taken.setdefault(found[image], image)
        if other != image:
            raise ConfigError(
                "out", f"must have one mask for each image, and {found[image]} is that of {other} and {image}"
            )
    known = {image.resolve() for image in images}
    if clash := next((path for path in found.values() if path.resolve() in known), None):
        raise ConfigError("out", f"must be another folder than that of the images, and {clash} is one of them")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise ConfigError("out", f"must be a new or an empty folder, and {out} has files; --overwrite replaces masks")
    return found


def write(path: Path, mask: bytes) -> None:
    """Write a mask whole, and the folders that it is in.

    Raises:
        ConfigError: when it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, mask)
    except OSError as error:
        raise ConfigError(
            "out", f"must be a folder that can be written, and {path} cannot be ({error.strerror})"
        ) from None


def palette() -> np.ndarray:
    """A colour for each number, those of the Pascal VOC data set: uint8, (256, 3)."""
    numbers, channels = np.arange(256)[:, None], np.arange(3)
    bits = [((numbers >> (3 * turn + channels)) & 1) << (7 - turn) for turn in range(8)]
    return np.sum(bits, axis=0).astype(np.uint8)
