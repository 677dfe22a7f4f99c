"""Folders of images."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from cifar_ray import data


def folder_of_digits(root: Path, count: int | None = None, halves: tuple[str, ...] = ("train", "test")) -> None:
    """Write the digits, or the first ``count`` of each half, as 8x8 PNG files into ``root/HALF/CLASS``."""
    digits = data.load("digits")
    for half, split in zip(halves, (digits.train, digits.test), strict=False):
        for index, (image, label) in enumerate(zip(split.inputs[:count], split["labels"][:count], strict=True)):
            folder = root / half / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[::4, ::4]).save(folder / f"{index:04}.png")
