"""Images with COCO's annotations of instances, ``--dataset coco:PATH``, as masks of their pixels' classes.

PATH/annotations/ has instances_trainYEAR.json and instances_valYEAR.json, PATH/trainYEAR/ and PATH/valYEAR/ the images.
A pixel has the class of the smallest instance there, 0 where there is none, and 255, which does not count, in a crowd.
Source: Lin et al. 2014, "Microsoft COCO: Common Objects in Context". pycocotools reads the annotations.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import masks
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Part
from cifar_ray.tasks.segmentation import Segmentation
from cifar_ray.tasks.spec import IGNORED

BACKGROUND = "background"  # class 0; the others are COCO's categories, by their numbers


class Coco(Files):
    """The newest annotations of a folder; a sample is the path of an image, that of these, and its number there."""

    column = Segmentation.target

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        notes = self.root / "annotations"
        years = [path.stem.removeprefix("instances_train") for path in notes.glob("instances_train*.json")]
        year = max((each for each in years if (notes / f"instances_val{each}.json").exists()), default=None)
        if year is None:
            raise unusable(f"must have instances_train2017.json and instances_val2017.json in {notes}, of any year")
        self.base = self.root / f"train{year}"
        self.left_out = f"val{year}/ is the test set, since COCO's test images have no annotations"
        try:
            from pycocotools.coco import COCO
        except ModuleNotFoundError:
            raise unusable("needs pycocotools; install it with `pip install 'cifar-ray[coco]'`") from None
        self._read, self.parts = {}, {}
        for part, folder in (("train", self.base), ("test", self.root / f"val{year}")):
            file = str(notes / f"instances_{folder.name}.json")
            with _format(file), contextlib.redirect_stdout(io.StringIO()):  # pycocotools says how long it takes
                self._read[file] = read = COCO(file)
                images = [each["file_name"] for each in read.dataset["images"]]
                names = [BACKGROUND, *(each["name"] for each in read.dataset["categories"])]
                fits = len({*images}) == len(images) == len(read.imgs) and len({*names}) == len(names) <= IGNORED
                if not fits or len(names) != len(read.cats) + 1 or not read.anns:
                    raise ValueError(f"images and at most {IGNORED - 1} categories need numbers, names and annotations")
                samples = sorted((str(folder / each["file_name"]), file, key) for key, each in read.imgs.items())
            self.parts[part] = Part(samples, np.zeros(len(samples), np.int64))
            if part == "train":
                self.classes = (BACKGROUND, *(read.cats[number]["name"] for number in sorted(read.cats)))

    def read(self, sample: tuple[str, str, int], side: int) -> np.ndarray:
        """See :class:`Source` and :func:`masks.beside`."""
        path, file, number = sample
        labels, read = {name: label for label, name in enumerate(self.classes)}, self._read[file]
        with _format(file):
            size = read.imgs[number]["height"], read.imgs[number]["width"]
            instances = [(_pixels(read, each, size), each) for each in read.loadAnns(read.getAnnIds(number))]
            mask = np.zeros(size, np.uint8)
            for pixels, each in sorted(instances, key=lambda pair: int(pair[0].sum()), reverse=True):
                mask[pixels > 0] = IGNORED if each.get("iscrowd") else labels[read.cats[each["category_id"]]["name"]]
        return masks.beside(path, file, mask, side)


def _pixels(read: Any, instance: dict[str, Any], size: tuple[int, int]) -> np.ndarray:
    """The pixels of an instance, which are 1. Those behind the last run would be as memory happens to be."""
    from pycocotools import mask

    if isinstance(runs := instance["segmentation"], dict):
        counts = runs["counts"]
        if isinstance(counts, list):
            fits = sum(counts) == size[0] * size[1]
        else:
            fits = mask.encode(mask.decode(runs))["counts"] == counts.encode()
        if not fits:
            raise ValueError(f"annotation {instance['id']} has no runs of all pixels of its image")
    return np.asarray(read.annToMask(instance))


SOURCE = Coco


@contextlib.contextmanager
def _format(file: str) -> Iterator[None]:
    """Context manager: name the file in an error within; pycocotools takes the format for granted."""
    try:
        yield
    except Exception as error:
        raise unusable(f"must be in COCO's format, and {file} is not ({error!r})") from None
