"""Images with COCO's annotations of instances, ``--dataset coco:PATH``, as masks of their pixels' classes.

PATH/annotations/ has instances_trainYEAR.json and instances_valYEAR.json, PATH/trainYEAR/ and PATH/valYEAR/ the images.
A pixel has the class of the smallest instance there, 0 where there is none, and 255, which does not count, in a crowd.
Source: Lin et al. 2014, "Microsoft COCO: Common Objects in Context". pycocotools reads the annotations.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cifar_ray.config.errors import ConfigError, first_line
from cifar_ray.data import decoded, masks
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Found, Part
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.tasks.spec import IGNORED

BACKGROUND = "background"
"""The name of class 0; the others are COCO's categories, by their numbers."""


@dataclass(frozen=True)
class Coco(Files):
    """A folder in COCO's layout, of which the newest annotations are read."""

    def find(self) -> Found:
        self.check_there()
        year = self._newest()
        of = {part: _Annotations(self.root, f"{name}{year}") for part, name in (("train", "train"), ("test", "val"))}
        train, val = of.values()
        if odd := sorted(train.categories.items() ^ val.categories.items()):
            where = f"{train.file} and {val.file}"
            raise unusable(f"must have the same categories in {where}; {odd[0][0]}, {odd[0][1]}, is in one only")
        parts = {part: Part(each.samples, np.zeros(len(each.samples), np.int64), each) for part, each in of.items()}
        if missing := next(
            (path for each in of.values() for path, _ in each.samples if not Path(path).is_file()), None
        ):
            raise unusable(f"must have every image that its annotations name, and there is no {missing}")
        words = f"val{year}/ is the test set, since COCO's test images have no annotations"
        return Found((BACKGROUND, *train.categories.values()), parts, Segmentation.target, left_out=words)

    def keys(self, part: Part, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        return [os.fsencode(os.path.relpath(path, part.reader.folder)) for path, _ in part.samples]

    def files(self, part: Part, row: int) -> tuple[str, ...]:
        return (part.samples[row][0],)

    def mark(self, part: Part, row: int) -> bytes:
        return super().mark(part, row) + decoded.mark(part.reader.file)

    def read(self, part: Part, row: int, side: int) -> np.ndarray:
        path, number = part.samples[row]
        return masks.beside(path, part.reader.file, part.reader.mask(number), side)

    def _newest(self) -> str:
        """The end of the names of the newest annotations, such as ``2017``."""
        train, val = (
            {file.stem.removeprefix(f"instances_{part}") for file in self.root.glob(f"annotations/instances_{part}*")}
            for part in ("train", "val")
        )
        if not train & val:
            rule = "must have annotations/instances_train2017.json and instances_val2017.json, or those of another year"
            raise unusable(f"{rule}, and {self.root} has not")
        return max(train & val)


class _Annotations:
    """What a file says.

    Attributes:
        file: its path.
        folder: where its images are.
        categories: names by their numbers, in the order of these.
        samples: paths of the images, sorted, with their numbers.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.file, self.folder = str(root / "annotations" / f"instances_{name}.json"), root / name
        coco = _tools().coco.COCO
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it says how long it takes
                self._coco = coco(self.file)
            self._check()
        except (ConfigError, OSError):
            raise
        except Exception as error:  # it takes the format for granted
            raise unusable(f"must be in COCO's format, and {self.file} is not: {_told(error)}") from None
        self.categories: dict[int, str] = {
            number: self._coco.cats[number]["name"] for number in sorted(self._coco.cats)
        }
        self._classes = {number: label for label, number in enumerate(self.categories, 1)}
        self.samples = sorted((str(self.folder / of["file_name"]), number) for number, of in self._coco.imgs.items())

    def _check(self) -> None:
        """Refuse what pycocotools would take, and read as something else."""
        content = self._coco.dataset
        names = [each["name"] for each in content["categories"]]
        files = {image["file_name"] for image in content["images"]}
        if not len(files) == len(self._coco.imgs) == len(content["images"]):
            raise unusable(f"must have a number and a file of its own for each image, and {self.file} has not")
        if not len({BACKGROUND, *names}) == len(self._coco.cats) + 1 == len(names) + 1 or not 1 <= len(names) < IGNORED:
            raise unusable(
                f"must have 1 to {IGNORED - 1} categories, each with a number and a name of its own, none of them "
                f"{BACKGROUND}, and {self.file} has not"
            )
        if not content["annotations"]:
            raise unusable(f"must have annotated images, and {self.file} has none")
        for each in content["annotations"]:
            image, _ = self._coco.imgs[each["image_id"]], self._coco.cats[each["category_id"]]
            if not _fits(each["segmentation"], [image["height"], image["width"]]):
                raise unusable(
                    f"must have outlines or runs of pixels that fit their images, and {self.file} has not "
                    f"in annotation {each['id']}"
                )

    def mask(self, number: int) -> np.ndarray:
        """The class of each pixel of an image: uint8, (height, width)."""
        runs = _tools().mask
        image = self._coco.imgs[number]
        found = [(self._coco.annToRLE(each), each) for each in self._coco.imgToAnns.get(number, [])]
        mask = np.zeros((image["height"], image["width"]), np.uint8)
        for pixels, each in sorted(found, key=lambda pair: runs.area(pair[0]), reverse=True):
            category = IGNORED if each.get("iscrowd") else self._classes[each["category_id"]]
            mask[runs.decode(pixels) > 0] = category
        return mask


def _fits(outline: Any, size: list[int]) -> bool:
    """Whether polygons have three finite corners and lie about the image, or runs are of all its pixels.

    pycocotools walks along an outline pixel by pixel, and leaves pixels behind the last run as memory happens to be.
    """
    if isinstance(outline, list):
        far = 100 * max(size)
        return bool(outline) and all(len(part) >= 6 and all(-far <= at <= far for at in part) for part in outline)
    counts = outline["counts"]
    if list(outline["size"]) != size:
        return False
    if isinstance(counts, list):
        return sum(counts) == size[0] * size[1]
    runs = _tools().mask
    return bool(runs.encode(np.asfortranarray(runs.decode(outline)))["counts"] == counts.encode())


def _told(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else first_line(error)


def _tools() -> Any:
    try:
        import pycocotools.coco
        import pycocotools.mask
    except ModuleNotFoundError:
        raise unusable("needs pycocotools; install it with `pip install 'cifar-ray[coco]'`") from None
    return pycocotools
