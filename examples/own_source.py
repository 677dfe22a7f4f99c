"""A kind of data set that the package does not have: NumPy arrays in a folder.

    python own_source.py FOLDER

FOLDER has train_images.npy and test_images.npy, and perhaps val_images.npy, uint8 (N, side, side, 3), each with whole
numbers (N,) in train_labels.npy and so on; classes.txt may name the classes. Without FOLDER, it is made of the digits.
In the package, the class would be a file in ``cifar_ray/data/``, and the line below it one of ``SOURCES``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import cifar_ray
from cifar_ray import data
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import PARTS, Files, Part


class Arrays(Files):
    """A folder of NumPy arrays, ``npy:PATH``."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.check_there()
        self.parts = {part: self._part(part) for part in PARTS if (self.root / f"{part}_images.npy").is_file()}
        if "train" not in self.parts:
            raise unusable(f"must have train_images.npy, and {self.root} has none")
        names = self.root / "classes.txt"
        count = 1 + max(int(part.targets.max()) for part in self.parts.values())
        self.classes = tuple(names.read_text().split()) if names.is_file() else tuple(map(str, range(count)))
        if len(self.classes) < count:
            raise unusable(f"must have a name for each of {count} classes in {names}")

    def _part(self, part: str) -> Part:
        images, labels = (np.load(self.root / f"{part}_{kind}.npy") for kind in ("images", "labels"))
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise unusable(f"must have uint8 (N, side, side, 3) in {part}_images.npy, and as many labels")
        return Part(images, labels.astype(np.int64))


data.SOURCES["npy:"] = Arrays


def main(folder: Path) -> None:
    """Train on a folder of arrays."""
    if not folder.exists():
        folder.mkdir(parents=True)
        digits = data.load("digits")
        for part, split in (("train", digits.train), ("test", digits.test)):
            np.save(folder / f"{part}_images.npy", split.inputs)
            np.save(folder / f"{part}_labels.npy", split["labels"])
    result = cifar_ray.train(TrainConfig(dataset=f"npy:{folder}", model="simple_cnn", epochs=2, topology="1x2"))
    print(result.metrics["test/accuracy"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "arrays").absolute())
