"""Data sets of torchvision, read and downloaded by its own classes, ``--dataset torchvision:NAME``, and those of this
package, whose facts are known before: scikit-learn's digits, and three of torchvision's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
from cifar_ray.data import arrays, imagefiles, torchvision_sets
from cifar_ray.data.datasets import SPECS, Dataset, digest, folder, to_model_size, unusable
from cifar_ray.data.decoded import Progress
from cifar_ray.data.source import PARTS, Part, Source

# torchvision has no public way to labels without images. Where a class has none of these, images are read for them.
_LABELS = ("targets", "labels", "_labels", "_samples")
_SOURCES = ("data", "_image_files", "_images", "samples", "_samples", "imgs")


class Published(Source):
    """A data set of this package, or one of torchvision, whose samples are what is read, its part, and its row."""

    def __init__(self, config: TrainConfig) -> None:
        self._dataset = name = config.dataset
        self.parts, home, spec = {}, folder(config.data_dir), SPECS.get(name)
        if spec and name == "digits":
            from sklearn.datasets import load_digits

            from cifar_ray.data import order

            # 8x8 with values 0 to 16; the last 360 of a fixed shuffle are kept for the test
            bunch, self.classes = load_digits(), tuple("0123456789")
            images, labels = to_model_size(spec, np.rint(bunch.images * (255 / 16))), bunch.target.astype(np.int64)
            rows = np.split(order.permutation(seed=0, epoch=0, size=len(images)).numpy(), [spec.train_size])
            self.parts = {part: Part(images[at], labels[at]) for part, at in zip(PARTS, rows)}
            return
        readers = opened(f"{TORCHVISION}{name.upper()}" if spec else name, home)
        self.classes, numbers = _classes(name, readers)
        self._readers = [*readers.values()] if spec is None else []
        for number, (part, reader) in enumerate(readers.items()):
            whole = to_model_size(spec, reader.data) if spec else None
            samples = [(each, number, row) for row, each in enumerate(_sources(reader))] if whole is None else whole
            self.parts[part] = Part(samples, numbers[part])

    def read(self, sample: tuple[Any, int, int], side: int) -> np.ndarray:
        """See :class:`Source`; images in MNIST's format get a border of 2 zeros at a side of 32."""
        _, part, row = sample
        try:
            image = imagefiles.upright(self._readers[part][row][0])
        except Exception as error:  # on damaged files the decoders raise whatever comes
            problem = f"cannot read image {row} of {self._dataset}: {first_line(error)}"
            raise imagefiles.UnreadableError("", problem) from None
        if arrays.of_images(self._dataset, side)["grey"]:
            image = ImageOps.expand(image, 2)
        return imagefiles.cropped(image, side)

    def load(self, config: TrainConfig, progress: Progress, encoding: str) -> Dataset:
        """The samples, of this package with the facts that are known before."""
        if not self.is_read:
            return super().load(config, progress, encoding)
        splits = self.splits
        train, val = splits["train"], splits.get("val", ())
        counts = arrays.class_counts(train, len(self.classes))
        spec = replace(SPECS[config.dataset], train_size=len(train), val_size=len(val), class_counts=counts)
        facts = replace(spec, names=self.classes, digest=digest(*splits.values()))
        return arrays.made(config.dataset, splits, facts)


SOURCE = Published


def present(name: str, data_dir: str | None = None) -> bool:
    """Whether a data set of this package is there; nothing is read or verified."""
    folders = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "mnist": "MNIST"}
    return name == "digits" or (folder(data_dir) / folders[name]).is_dir()


def opened(dataset: str, root: Path) -> dict[str, Any]:
    """torchvision's objects of the parts, downloaded first by one process where they cannot be read.

    A ConfigError says what to do when they can be neither read nor downloaded.
    """
    name, known = dataset.removeprefix(TORCHVISION), torchvision_sets.SPLITS
    if name not in known:
        raise unusable(f"must be {TORCHVISION} and {one_of(known)}, got {dataset[:80]}{suggestion(name, known)}")
    try:
        return _construct(name, root)
    except Exception as error:  # files that are missing or damaged lead to whatever comes
        unread = first_line(error).partition(" You can use download=True")[0]  # an option of torchvision's
    try:
        with FileLock(root / f".{name.partition('/')[0]}.lock"):
            with suppress(Exception):  # another process may have been first
                return _construct(name, root)
            flags.note(f"downloading {dataset} to {root}")
            with TemporaryDirectory(prefix=".", dir=root) as whole:  # part of a download would be read as fewer images
                _construct(name, Path(whole), download=True)
                for path in (each for each in Path(whole).iterdir() if not (root / each.name).exists()):
                    path.rename(root / path.name)
            return _construct(name, root)
    except Exception as error:  # of the network, of archives that are cut off, of the folder, of what has no download
        problem = f"{dataset} is not whole in {root} and could not be downloaded ({unread} / {first_line(error)})"
        remedy = "check the network, remove what is damaged, or take --dataset digits, which needs no network"
        raise ConfigError("", f"{problem}; {remedy}") from None


def _construct(name: str, root: Path, **options: Any) -> dict[str, Any]:
    from torchvision import datasets

    reader, _, split = name.partition("/")
    options |= {"split": split} if split else {"small": True} if name == "Places365" else {}
    splits: list[Any] = [{"split": each} for each in torchvision_sets.SPLITS[name]]
    splits = splits or [{"train": True}, {"train": False}]
    return {part: getattr(datasets, reader)(str(root), **of, **options) for part, of in zip(PARTS, splits)}


def _classes(dataset: str, parts: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The names of the classes that there are training images of, and each part's labels as numbers of these."""
    labels = {}
    for name, part in parts.items():
        found = next((getattr(part, each) for each in _LABELS if hasattr(part, each)), part)
        if found is part or isinstance(found[0], tuple):
            found = [found[row][1] for row in range(len(part))]
        # QMNIST has more to say of an image. What has no label is NaN.
        labels[name] = np.asarray(found, dtype=np.float64).reshape(len(part), -1)[:, 0]
    used = np.unique(labels["train"]).astype(np.int64)
    if not all(np.isin(of, used).all() for of in labels.values()):
        raise unusable(f"must have labels for all images, and training images of each, and {dataset} has not")
    given = getattr(parts["train"], "classes", None) or range(used.max() + 1)
    names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in (given[label] for label in used)]
    unique = tuple(name if names.count(name) == 1 else f"{name} ({label})" for name, label in zip(names, used))
    return unique, {name: np.searchsorted(used, of) for name, of in labels.items()}


def _sources(part: Any) -> Sequence[Any]:
    """What each image is read from: the path of a file, or pixels; its position where that cannot be told."""
    found = next((getattr(part, name) for name in _SOURCES if hasattr(part, name)), range(len(part)))
    images = [each[0] if isinstance(each, tuple) else each for each in found]
    return [str(each) if isinstance(each, str | Path) else np.asarray(each) for each in images]
