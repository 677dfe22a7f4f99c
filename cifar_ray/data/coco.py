"""Images with COCO's annotations of instances, ``--dataset coco:PATH``, as masks of their pixels' classes.

PATH/annotations/ has instances_trainYEAR.json and instances_valYEAR.json, PATH/trainYEAR/ and PATH/valYEAR/ the images.
A pixel has the class of the smallest instance there, 0 where there is none, and 255, which does not count, in a crowd.
Source: Lin et al. 2014, "Microsoft COCO: Common Objects in Context". pycocotools reads the annotations.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cifar_ray.config.errors import ConfigError, first_line
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import masks
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Part
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.tasks.spec import IGNORED

BACKGROUND = "background"
"""The name of class 0; the others are COCO's categories, by their numbers."""


class Coco(Files):
    """A folder in COCO's layout, of which the newest annotations are read.

    A sample is the path of an image, that of its annotations, and its number there.
    """

    column = Segmentation.target

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.check_there()
        year = _newest(self.root)
        self.base = self.root / f"train{year}"
        self.left_out = f"val{year}/ is the test set, since COCO's test images have no annotations"
        self._read, self.parts, names = {}, {}, []
        for part, folder in (("train", self.base), ("test", self.root / f"val{year}")):
            file = str(self.root / "annotations" / f"instances_{folder.name}.json")
            with _format(file):
                self._read[file] = read = _opened(file)
                names.append({number: each["name"] for number, each in sorted(read.cats.items())})
                samples = sorted((str(folder / each["file_name"]), file, key) for key, each in read.imgs.items())
            if missing := next((path for path, *_ in samples if not Path(path).is_file()), ""):
                raise unusable(f"must have every image that its annotations name, and there is no {missing}")
            self.parts[part] = Part(samples, np.zeros(len(samples), np.int64))
        if odd := sorted(names[0].items() ^ names[1].items()):
            where = " and ".join(self._read)
            raise unusable(f"must have the same categories in {where}; {odd[0][0]}, {odd[0][1]}, is in one only")
        self.classes = (BACKGROUND, *names[0].values())
        self._labels = {number: label for label, number in enumerate(names[0], 1)}

    def read(self, sample: tuple[str, str, int], side: int) -> np.ndarray:
        """See :func:`masks.beside`.

        Raises:
            ConfigError: naming the file when it cannot be read, or an annotation does not fit the image.
        """
        path, file, number = sample
        with _format(file):
            numbers = self._mask(self._read[file], number)
        return masks.beside(path, file, numbers, side)

    def _mask(self, read: Any, number: int) -> np.ndarray:
        """The class of each pixel of an image: uint8, (height, width)."""
        size = [read.imgs[number]["height"], read.imgs[number]["width"]]
        mask, instances = np.zeros(size, np.uint8), []
        for each in read.loadAnns(read.getAnnIds(number)):
            if not _fits(each["segmentation"], size):
                raise ValueError(f"annotation {each['id']} is no outline or runs of pixels that fit its image")
            instances.append((read.annToMask(each), each))
        for pixels, each in sorted(instances, key=lambda pair: int(pair[0].sum()), reverse=True):
            mask[pixels > 0] = IGNORED if each.get("iscrowd") else self._labels[each["category_id"]]
        return mask


SOURCE = Coco


def _newest(root: Path) -> str:
    """The end of the names of the newest annotations, such as ``2017``."""
    train, val = (
        {at.stem.removeprefix(f"instances_{part}") for at in root.glob(f"annotations/instances_{part}*.json")}
        for part in ("train", "val")
    )
    if not train & val:
        rule = "must have annotations/instances_train2017.json and instances_val2017.json, or those of another year"
        raise unusable(f"{rule}, and {root} has not")
    return max(train & val)


def _opened(file: str) -> Any:
    """What pycocotools reads of a file, in which each image and each category has a number and a name of its own."""
    with contextlib.redirect_stdout(io.StringIO()):  # it says how long it takes
        read = _tools().coco.COCO(file)
    for kind, name, known in (("images", "file_name", read.imgs), ("categories", "name", read.cats)):
        if not len({each[name] for each in known.values()} - {BACKGROUND}) == len(known) == len(read.dataset[kind]):
            raise ValueError(f"{kind} need a number and a name each")
    if not read.anns or len(read.cats) >= IGNORED:
        raise ValueError(f"annotations of at most {IGNORED - 1} categories are needed")
    return read


@contextlib.contextmanager
def _format(file: str) -> Iterator[None]:
    """Context manager: name the file in an error within; pycocotools takes the format for granted."""
    try:
        yield
    except (ConfigError, OSError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise unusable(f"must be in COCO's format, and {file} is not ({reason})") from None


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
