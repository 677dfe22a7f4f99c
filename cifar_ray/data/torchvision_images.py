"""Data sets of torchvision, ``--dataset torchvision:NAME``: read and downloaded by torchvision's own classes.

Images are brought to one size as those of a folder are; those in MNIST's format get a border of 2 zeros to 32x32, as
``--dataset mnist`` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from filelock import FileLock
from PIL import ImageOps

from cifar_ray.config import flags
from cifar_ray.config.errors import ConfigError, first_line, one_of, suggestion
from cifar_ray.config.option import TORCHVISION
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import imagefiles, torchvision_sets
from cifar_ray.data.datasets import BORDERED_SIDE, folder, unusable
from cifar_ray.data.source import PARTS, Part, Source

# torchvision gives no public way to labels without images. Where a class has none of these, images are read for them.
_LABELS = ("targets", "labels", "_labels", "_samples")
_SOURCES = ("data", "_image_files", "_images", "samples", "_samples", "imgs")


class Torchvision(Source):
    """A data set of torchvision; a sample is what an image is read from, the number of its part, and its row."""

    def __init__(self, config: TrainConfig) -> None:
        self._dataset, readers = config.dataset, opened(config.dataset, folder(config.data_dir))
        self._readers = [*readers.values()]
        self.classes, labels = _classes(config.dataset, readers)
        self.parts = {
            part: Part([(each, number, row) for row, each in enumerate(_sources(reader))], labels[part])
            for number, (part, reader) in enumerate(readers.items())
        }

    def read(self, sample: tuple[Any, int, int], side: int) -> np.ndarray:
        """See :class:`Source`."""
        _, part, row = sample
        try:
            image = imagefiles.upright(self._readers[part][row][0])
        except Exception as error:  # on damaged files the decoders raise whatever comes
            raise imagefiles.UnreadableError(f"{row} of {self._dataset}", first_line(error)) from None
        if self._dataset.removeprefix(TORCHVISION) in torchvision_sets.BORDERED and side == BORDERED_SIDE:
            image = ImageOps.expand(image, 2)
        return imagefiles.cropped(image, side)


SOURCE = Torchvision


def opened(dataset: str, root: Path) -> dict[str, Any]:
    """torchvision's objects of the parts, downloaded first by one process where they cannot be read.

    Raises:
        ConfigError: when they can be neither read nor downloaded; the sentence says what to do.
    """
    name, known = dataset.removeprefix(TORCHVISION), torchvision_sets.SPLITS
    if name not in known:
        in_case = {each.lower(): each for each in known}.get(name.lower(), name)
        raise unusable(f"must be {TORCHVISION} and {one_of(known)}, got {dataset[:80]}{suggestion(in_case, known)}")
    try:
        return _construct(name, root)
    except Exception as error:  # files that are missing or damaged lead to whatever comes
        unread = first_line(error)
    try:
        with FileLock(root / f".{name.replace('/', '.')}.lock"):
            with suppress(Exception):  # another process may have been first
                return _construct(name, root)
            flags.note(f"downloading {dataset} to {root}")
            with TemporaryDirectory(prefix=".", dir=root) as whole:  # part of a download would be read as fewer images
                _construct(name, Path(whole), download=True)
                for path in Path(whole).iterdir():
                    path.rename(root / path.name)
            return _construct(name, root)
    except Exception as error:  # of the network, of archives that are cut off, of the folder, of what has no download
        reasons = f"{unread} / {' '.join(str(error).split())}"
        remedy = "check the network, remove what is damaged, or take --dataset digits, which needs no network"
        problem = f"{dataset} is not whole in {root} and could not be downloaded ({reasons}); {remedy}"
        raise ConfigError("", problem) from None


def _construct(name: str, root: Path, **options: Any) -> dict[str, Any]:
    from torchvision import datasets

    reader, _, split = name.partition("/")
    options |= {"split": split} if split else {"small": True} if name == "Places365" else {}
    splits: list[Any] = [{"split": each} for each in torchvision_sets.SPLITS[name]]
    splits = splits or [{"train": True}, {"train": False}]
    return {part: getattr(datasets, reader)(str(root), **of, **options) for part, of in zip(PARTS, splits)}


def _classes(dataset: str, parts: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The names of the classes that there are training images of, and each part's labels as numbers of these."""
    labels = {name: _labels(part) for name, part in parts.items()}
    used = np.unique(labels["train"]).astype(np.int64)
    if not all(np.isin(of, used).all() for of in labels.values()):
        raise unusable(f"must have labels for all images, and training images of each, and {dataset} has not")
    given = getattr(parts["train"], "classes", None) or range(used.max() + 1)
    names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in (given[label] for label in used)]
    unique = tuple(name if names.count(name) == 1 else f"{name} ({label})" for name, label in zip(names, used))
    return unique, {name: np.searchsorted(used, of) for name, of in labels.items()}


def _labels(part: Any) -> np.ndarray:
    """The label of each image as a float, NaN where there is none."""
    found = next((getattr(part, name) for name in _LABELS if hasattr(part, name)), part)
    if found is part or isinstance(found[0], tuple):
        found = [found[row][1] for row in range(len(part))]
    return np.asarray(found, dtype=np.float64).reshape(len(part), -1)[:, 0]  # QMNIST has more to say of an image


def _sources(part: Any) -> Sequence[Any]:
    """What each image is read from: the path of a file, or pixels; its position where that cannot be told."""
    found = next((getattr(part, name) for name in _SOURCES if hasattr(part, name)), range(len(part)))
    images = [each[0] if isinstance(each, tuple) else each for each in found]
    return [str(each) if isinstance(each, str | Path) else np.asarray(each) for each in images]
