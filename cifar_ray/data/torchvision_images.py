"""Data sets of torchvision, ``--dataset torchvision:NAME``: read and downloaded by torchvision's own classes.

Those of :mod:`cifar_ray.data.torchvision_sets`. Images are brought to one size as those of a folder are; those in
MNIST's format get a border of 2 zeros to 32x32, as ``--dataset mnist`` has them.
"""

from __future__ import annotations

import io
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cifar_ray.config import flags
from cifar_ray.config.errors import ConfigError, first_line
from cifar_ray.config.option import TORCHVISION
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import imagefiles, torchvision_sets
from cifar_ray.data.datasets import BORDERED_SIDE, folder, unusable
from cifar_ray.data.source import Part, Source

# torchvision gives no public way to labels without images. Where a class has none of these, images are read for them.
_LABELS = ("targets", "labels", "_labels")
_SOURCES = ("data", "_image_files", "_images", "samples", "_samples", "imgs")

_DOWNLOAD_TIMEOUT_S = 30.0


class Torchvision(Source):
    """A data set of torchvision; a sample is what an image is read from, the number of its part, and its row."""

    def __init__(self, config: TrainConfig) -> None:
        self._dataset = config.dataset
        readers = opened(config.dataset, folder(config.data_dir))
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
        if torchvision_sets.find(self._dataset).bordered and side == BORDERED_SIDE:
            return np.pad(np.asarray(image), ((2, 2), (2, 2), (0, 0)))
        return imagefiles.cropped(image, side)


SOURCE = Torchvision


def opened(dataset: str, root: Path, note: Callable[[str], None] = flags.note) -> dict[str, Any]:
    """torchvision's objects of the parts, downloaded first by one process where they cannot be read.

    Raises:
        ConfigError: when they can be neither read nor downloaded; the sentence says what to do.
    """
    can_download = torchvision_sets.find(dataset).downloads
    try:
        return _construct(dataset, root)
    except Exception as error:  # files that are missing or damaged lead to whatever comes
        if not can_download:
            raise unusable(f"must be in {root}, where {dataset} cannot be read: {first_line(error)}") from None
    name = dataset.removeprefix(TORCHVISION).replace("/", ".")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f".{name}.lock").acquire()
    except OSError as error:
        problem = f"must be a folder that can be written for {dataset}, and {root} cannot be ({error.strerror})"
        raise ConfigError("data_dir", problem) from None
    with lock:
        with suppress(Exception):  # another process may have been first
            return _construct(dataset, root)
        note(f"downloading {dataset} to {root}")
        try:
            _download(dataset, root, root / f".{name}.partial")
            return _construct(dataset, root)
        except Exception as error:  # of the network, of archives that are cut off, of gdown
            reason = " ".join(str(error).split())
            raise ConfigError(
                "",
                f"{dataset} is not whole in {root} and could not be downloaded ({reason}); check the network, put its "
                "files there in place of those that are, name another --data-dir, or take --dataset digits, which "
                "needs no network",
            ) from None


def _download(dataset: str, root: Path, partial: Path) -> None:
    """Download a data set into another folder, and then move its files into ``root``: all of them or none."""
    shutil.rmtree(partial, ignore_errors=True)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_S)
    try:
        # torchvision's progress bar would be thousands of lines in a file.
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            _construct(dataset, partial, download=True)
    finally:
        socket.setdefaulttimeout(before)
    for path in partial.iterdir():
        if not (root / path.name).exists():
            path.rename(root / path.name)
    shutil.rmtree(partial, ignore_errors=True)


def _construct(dataset: str, root: Path, **options: Any) -> dict[str, Any]:
    from torchvision import datasets

    facts, name = torchvision_sets.find(dataset), dataset.removeprefix(TORCHVISION).partition("/")[0]
    reader = getattr(datasets, name)
    if name == "MNIST":
        # It prefers the files that an old version of it has left in processed/, which nobody can verify.
        reader = type(name, (reader,), {"_check_legacy_exist": lambda self: False})
    return {part: reader(str(root), **which, **facts.options, **options) for part, which in facts.parts.items()}


def _classes(dataset: str, parts: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The names of the classes that there are training images of, and each part's labels as numbers of these."""
    try:
        labels = {name: _labels(part) for name, part in parts.items()}
    except TypeError:  # FER2013's test images were first published without them
        raise unusable(f"must have labels for all images, and the files of {dataset} do not") from None
    used = np.unique(labels["train"])
    if unknown := {int(label) for of in labels.values() for label in np.setdiff1d(of, used)}:
        raise unusable(f"must have training images of class {min(unknown)}, and {dataset} has none")
    given = getattr(parts["train"], "classes", None)
    names = [given[label] if given else str(label) for label in used]
    names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in names]
    unique = tuple(name if names.count(name) == 1 else f"{name} ({label})" for name, label in zip(names, used))
    return unique, {name: np.searchsorted(used, of).astype(np.int64) for name, of in labels.items()}


def _labels(part: Any) -> np.ndarray:
    for attribute in _LABELS:
        if hasattr(part, attribute):
            labels = np.asarray(getattr(part, attribute), dtype=np.int64)
            return labels if labels.ndim == 1 else labels[:, 0]  # QMNIST has more to say of an image
    pairs = part._samples if hasattr(part, "_samples") else part
    return np.array([pairs[row][1] for row in range(len(part))], dtype=np.int64)


def _sources(part: Any) -> Sequence[Any]:
    """What each image is read from: the path of a file, or pixels; its position where that cannot be told."""
    for attribute in _SOURCES:
        if hasattr(part, attribute):
            images = getattr(part, attribute)
            if isinstance(images[0], tuple):  # with its label
                images = [each[0] for each in images]
            return [*map(str, images)] if isinstance(images[0], str | Path) else [*np.asarray(images)]
    return range(len(part))
