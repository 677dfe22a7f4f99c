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
        if missing := next((at for each in of.values() for at, _ in each.samples if not Path(at).is_file()), None):
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
            {at.stem.removeprefix(f"instances_{part}") for at in self.root.glob(f"annotations/instances_{part}*.json")}
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
        read = _tools().coco.COCO
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it says how long it takes
                self._coco = read(self.file)
            self._check()
        except (ConfigError, OSError):
            raise
        except Exception as error:  # it takes the format for granted
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise unusable(f"must be in COCO's format, and {self.file} is not ({reason})") from None
        self.categories: dict[int, str] = {number: each["name"] for number, each in sorted(self._coco.cats.items())}
        self._classes = {number: label for label, number in enumerate(self.categories, 1)}
        self.samples = sorted(
            (str(self.folder / each["file_name"]), number) for number, each in self._coco.imgs.items()
        )

    def _check(self) -> None:
        """Refuse what pycocotools would take, and read as something else."""
        of, cats, imgs = self._coco.dataset, self._coco.cats, self._coco.imgs
        names, files = (
            {each[key] for each in of[kind]} for kind, key in (("categories", "name"), ("images", "file_name"))
        )
        rules = {
            "a number and a file of its own for each image": len(files) == len(imgs) == len(of["images"]),
            f"1 to {IGNORED - 1} categories, each with a number and a name of its own, none of them {BACKGROUND}": (
                1 <= len(names - {BACKGROUND}) == len(cats) == len(of["categories"]) < IGNORED
            ),
            "annotated images": bool(of["annotations"]),
        }
        if broken := next((rule for rule, holds in rules.items() if not holds), ""):
            raise unusable(f"must have {broken}, and {self.file} has not")
        for each in of["annotations"]:
            image, _ = imgs[each["image_id"]], cats[each["category_id"]]
            if not _fits(each["segmentation"], [image["height"], image["width"]]):
                rule = f"an outline or runs of pixels that fit the image in annotation {each['id']}"
                raise unusable(f"must have {rule}, and {self.file} has not")

    def mask(self, number: int) -> np.ndarray:
        """The class of each pixel of an image: uint8, (height, width)."""
        tools, image = _tools().mask, self._coco.imgs[number]
        instances = [(self._coco.annToRLE(each), each) for each in self._coco.imgToAnns.get(number, [])]
        mask = np.zeros((image["height"], image["width"]), np.uint8)
        for pixels, each in sorted(instances, key=lambda pair: tools.area(pair[0]), reverse=True):
            mask[tools.decode(pixels) > 0] = IGNORED if each.get("iscrowd") else self._classes[each["category_id"]]
        return mask


def _fits(outline: Any, size: list[int]) -> bool:
    """Whether polygons have three finite corners about the image, or runs are of all its pixels.

    pycocotools walks along an outline pixel by pixel, and leaves pixels behind the last run as memory happens to be.
    """
    if isinstance(outline, list):
        far = 100 * max(size)
        return bool(outline) and all(len(part) >= 6 and all(-far <= at <= far for at in part) for part in outline)
    counts, tools = outline["counts"], _tools().mask
    if list(outline["size"]) != size:
        return False
    if isinstance(counts, list):
        return sum(counts) == size[0] * size[1]
    return bool(tools.encode(np.asfortranarray(tools.decode(outline)))["counts"] == counts.encode())


def _tools() -> Any:
    try:
        import pycocotools.coco
        import pycocotools.mask
    except ModuleNotFoundError:
        raise unusable("needs pycocotools; install it with `pip install 'cifar-ray[coco]'`") from None
    return pycocotools
