"""Folders of images."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from cifar_ray import data
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.training import recipe


def of(dataset: Path | str, **values: object) -> ResolvedConfig:
    """A config to train a small network with a data set, or the images in a folder."""
    name = f"folder:{dataset}" if isinstance(dataset, Path) else dataset
    return recipe.resolve(TrainConfig(**{"dataset": name, "batch_size": 2, "model": "simple_cnn", **values}))  # type: ignore[arg-type]


def folder_of_digits(root: Path, count: int | None = None, halves: tuple[str, ...] = ("train", "test")) -> None:
    """Write the digits, or the first ``count`` of each half, as 8x8 PNG files into ``root/HALF/CLASS``."""
    digits = data.load("digits")
    for half, split in zip(halves, (digits.train, digits.test), strict=False):
        for index, (image, label) in enumerate(zip(split.inputs[:count], split["labels"][:count], strict=True)):
            (folder := root / half / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[::4, ::4]).save(folder / f"{index:04}.png", compress_level=1)
