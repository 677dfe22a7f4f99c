"""Images with COCO's annotations of instances, ``--dataset coco:PATH``, as masks of their pixels' classes.

PATH/annotations/ has instances_trainYEAR.json and instances_valYEAR.json, PATH/trainYEAR/ and PATH/valYEAR/ the images.
A pixel has the class of the smallest instance there, 0 where there is none, and 255, which does not count, in a crowd.
Source: Lin et al. 2014, "Microsoft COCO: Common Objects in Context". pycocotools turns outlines into masks.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from cifar_ray.config.errors import ConfigError
from cifar_ray.data import folders, masks
from cifar_ray.data.datasets import unusable
from cifar_ray.data.folders import Listing
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.tasks.spec import IGNORED

BACKGROUND = "background"
"""The name of class 0; the others are COCO's categories, by their numbers."""

_FARTHEST = 100_000.0  # pixels; pycocotools walks along an outline pixel by pixel

_Side = Annotated[int, Field(gt=0, le=65_535)]  # pixels; a JPEG file has no more
_Position = Annotated[float, Field(ge=-_FARTHEST, le=_FARTHEST, allow_inf_nan=False)]
_Outline = Annotated[list[_Position], Field(min_length=6)]


@dataclass(frozen=True, slots=True)
class _Runs:
    """Lengths of runs of pixels down the columns, outside and inside in turn, as numbers or as pycocotools' text."""

    size: tuple[_Side, _Side]
    counts: list[Annotated[int, Field(ge=0)]] | str


@dataclass(frozen=True, slots=True)
class _Image:
    id: int
    file_name: Annotated[str, Field(min_length=1)]
    width: _Side
    height: _Side


@dataclass(frozen=True, slots=True)
class _Category:
    id: int
    name: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class _Instance:
    id: int
    image_id: int
    category_id: int
    segmentation: Annotated[list[_Outline], Field(min_length=1)] | _Runs
    iscrowd: bool = False


@dataclass(frozen=True, slots=True)
class _File:
    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Instance]


@dataclass(frozen=True)
class _Annotations:
    """What a file says."""

    categories: dict[int, str]  # names by their numbers, in the order of these
    images: dict[str, _Image]  # by the paths of their files
    instances: dict[int, list[_Instance]]  # by the number of their image


@functools.cache
def listing(root: Path, val_share: float, stamp: tuple[int, ...] = ()) -> Listing:
    """The images that the newest annotations name, each with the file of these; see :func:`folders.listing`.

    Raises:
        ConfigError: when pycocotools is not installed, there is no such folder, or it has another layout, an image is
            not there, or the annotations do not do.
    """
    _pycocotools()
    folders.check_there(root)
    year = _newest(root)
    train, val = (root / "annotations" / f"instances_{part}{year}.json" for part in ("train", "val"))
    known = {file: _annotations(file) for file in (train, val)}
    if odd := sorted(known[train].categories.items() ^ known[val].categories.items()):
        raise unusable(f"must have the same categories in {train} and {val}; {odd[0][0]}, {odd[0][1]}, is in one only")
    files = {file: tuple((image, str(file)) for image in sorted(of.images)) for file, of in known.items()}
    if missing := next((image for image, _ in (*files[train], *files[val]) if not Path(image).is_file()), None):
        raise unusable(f"must have every image that its annotations name, and there is no {missing}")
    words = f"val{year}/ is the test set, since COCO's test images have no annotations"
    classes = (BACKGROUND, *known[train].categories.values())
    whole = Listing(classes, files[train], files[val], words, (), Segmentation.target)
    return folders.validated(whole, root / f"train{year}", val_share)


def _newest(root: Path) -> str:
    """The end of the names of the newest annotations, such as ``2017``."""
    train, val = (
        {file.stem.removeprefix(f"instances_{part}") for file in root.glob(f"annotations/instances_{part}*.json")}
        for part in ("train", "val")
    )
    if not train & val:
        raise unusable(
            "must have annotations/instances_train2017.json and instances_val2017.json, or those of another year, and "
            f"{root} has not"
        )
    return max(train & val)


def forget() -> None:
    """Free the annotations, which take gigabytes; they are read again when they are needed."""
    _read.cache_clear()


def _annotations(file: Path) -> _Annotations:
    return _read(file, file.stat().st_ctime_ns)


@functools.lru_cache(maxsize=2)
def _read(file: Path, changed_ns: int) -> _Annotations:
    """The annotations of a file, once in a process for as long as ``changed_ns`` stays."""
    try:
        content: _File = TypeAdapter(_File).validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in (".".join(map(str, first["loc"][:3])),) if part)
        raise unusable(f"must be in COCO's format, and {file} is not: {where}{first['msg']}") from None
    folder = file.parents[1] / file.stem.removeprefix("instances_")
    images = {str(folder / image.file_name): image for image in content.images}
    categories = {category.id: category.name for category in sorted(content.categories, key=lambda each: each.id)}
    sizes = {image.id: (image.height, image.width) for image in content.images}
    if len(images) < len(content.images) or len(sizes) < len(content.images):
        raise unusable(f"must have a number and a file of its own for each image, and {file} has not")
    names = {BACKGROUND, *categories.values()}
    if not len(names) == len(categories) + 1 == len(content.categories) + 1 or not 1 < len(names) <= IGNORED:
        raise unusable(
            f"must have 1 to {IGNORED - 1} categories, each with a number and a name of its own, none of them "
            f"{BACKGROUND}, and {file} has not"
        )
    instances = defaultdict(list)
    for each in content.annotations:
        if each.image_id not in sizes or each.category_id not in categories:
            kind, number = ("category", each.category_id) if each.image_id in sizes else ("image", each.image_id)
            raise unusable(
                f"must have annotations of known images and categories, and {file} has no {kind} {number}, "
                f"of which annotation {each.id} is"
            )
        if not _fits(each.segmentation, sizes[each.image_id]):
            raise _misfit(each, file)
        instances[each.image_id].append(each)
    if not instances:
        raise unusable(f"must have annotated images, and {file} has none")
    return _Annotations(categories, images, instances)


def _fits(outline: list[list[float]] | _Runs, size: tuple[int, int]) -> bool:
    """Whether runs of pixels, if it is such, are of an image of that height and width, as far as numbers tell."""
    if isinstance(outline, list):
        return True
    return outline.size == size and (isinstance(outline.counts, str) or sum(outline.counts) == size[0] * size[1])


def _misfit(instance: _Instance, file: Path) -> ConfigError:
    return unusable(
        f"must have runs of as many pixels as the image has, and annotation {instance.id} of {file} has other ones"
    )


def read(image: str, file: str, side: int) -> np.ndarray:
    """The centre of an image and of its mask, as :func:`masks.read`."""
    return masks.beside(image, file, _mask(image, Path(file)), side)


def _mask(path: str, file: Path) -> np.ndarray:
    """The class of each pixel of an image: uint8, (height, width)."""
    pycocotools, annotations = _pycocotools(), _annotations(file)
    image = annotations.images[path]
    classes = {category: label for label, category in enumerate(annotations.categories, 1)}
    found = [(_runs(each, image, file), each) for each in annotations.instances.get(image.id, [])]
    mask = np.zeros((image.height, image.width), np.uint8)
    for runs, each in sorted(found, key=lambda pair: pycocotools.area(pair[0]), reverse=True):
        mask[pycocotools.decode(runs) > 0] = IGNORED if each.iscrowd else classes[each.category_id]
    return mask


def _runs(instance: _Instance, image: _Image, file: Path) -> Any:
    """The pixels of an instance as pycocotools takes them."""
    pycocotools, outline = _pycocotools(), instance.segmentation
    if isinstance(outline, list):
        return pycocotools.merge(pycocotools.frPyObjects(outline, image.height, image.width))
    runs = {"size": list(outline.size), "counts": outline.counts}
    if isinstance(outline.counts, list):
        return pycocotools.frPyObjects(runs, image.height, image.width)
    try:
        # It leaves pixels behind the end of too short a text as memory happens to be.
        if pycocotools.encode(np.asfortranarray(pycocotools.decode(runs)))["counts"] == outline.counts.encode():
            return runs
    except ValueError:
        pass
    raise _misfit(instance, file)


def _pycocotools() -> ModuleType:
    try:
        from pycocotools import mask
    except ModuleNotFoundError:
        raise unusable("needs pycocotools; install it with `pip install 'cifar-ray[coco]'`") from None
    return mask
