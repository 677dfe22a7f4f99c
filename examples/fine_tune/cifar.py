"""CIFAR-10 in two halves: classes 0 to 4 to learn from first, and some images of classes 5 to 9 to fine-tune on.

As a program, it writes the second half as image files: images/train/dog/00000.png and so on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from cifar_ray import data

EACH = 200
"""Training images of each of the classes to fine-tune on, of 5,000."""

Half: TypeAlias = tuple[np.ndarray, np.ndarray]


def first() -> tuple[Half, Half, list[str]]:
    """The classes 0 to 4, with all their images."""
    return _classes(range(5), None)


def last() -> tuple[Half, Half, list[str]]:
    """The classes 5 to 9, with :data:`EACH` training images of each."""
    return _classes(range(5, 10), EACH)


def _classes(labels: range, each: int | None) -> tuple[Half, Half, list[str]]:
    """Some classes, with labels from 0; of the training images at most ``each``."""
    cifar10 = data.load("cifar10")
    halves = []
    for split, most in ((cifar10.train, each), (cifar10.test, None)):
        rows = np.concatenate([np.flatnonzero(split["labels"] == label)[:most] for label in labels])
        halves.append((split.inputs[rows], split["labels"][rows] - labels.start))
    return halves[0], halves[1], [cifar10.spec.names[label] for label in labels]


def main() -> None:
    """Write the images of :func:`last` into the working folder."""
    *halves, names = last()
    for part, (images, labels) in zip(("train", "test"), halves, strict=True):
        for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
            folder = Path("images", part, names[label])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{index:05}.png")
    print(f"{sum(len(labels) for _, labels in halves):,} images in images/")


if __name__ == "__main__":
    main()
