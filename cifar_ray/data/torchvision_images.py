"""Data sets of torchvision, ``--dataset torchvision:NAME``: read and downloaded by torchvision's own classes.

Those of :mod:`cifar_ray.data.torchvision_sets`. Images are brought to one size as those of a folder are; those in
MNIST's format get a border of 2 zeros to 32x32, as ``--dataset mnist`` has them.
"""

from __future__ import annotations

import io
import shutil
import socket
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cifar_ray.config import flags
from cifar_ray.config.errors import ConfigError, first_line
from cifar_ray.config.option import TORCHVISION
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import decoded, imagefiles, source, torchvision_sets
from cifar_ray.data.datasets import BORDERED_SIDE, folder, unusable
from cifar_ray.data.source import Found, Part, Source

# torchvision gives no public way to labels without images. Where a class has none of these, images are read for them.
_LABELS = ("targets", "labels", "_labels")
_SOURCES = ("data", "_image_files", "_images", "samples", "_samples", "imgs")

_DOWNLOAD_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Torchvision(Source):
    """A data set of torchvision. A part's ``reader`` is torchvision's object, and what it reads each image from."""

    dataset: str
    folder: Path = field(repr=False)  # decoded images stay good when it is moved

    @classmethod
    def of(cls, config: TrainConfig) -> Torchvision:
        return cls(config.dataset, folder(config.data_dir))

    def find(self) -> Found:
        readers = opened(self.dataset, self.folder)
        classes, labels = _classes(self.dataset, readers)
        return Found(
            classes,
            {
                part: Part(range(len(reader)), labels[part], (reader, _sources(reader)))
                for part, reader in readers.items()
            },
        )

    def files(self, part: Part, row: int) -> tuple[str, ...]:
        return ()

    def mark(self, part: Part, row: int) -> bytes:
        of = part.reader[1][part.samples[row]]
        return part.targets[row].tobytes() + (decoded.mark(str(of)) if _is_path(of) else np.asarray(of).tobytes())

    def contents(self, part: Part) -> Sequence[Hashable]:
        every = [part.reader[1][row] for row in part.samples]
        return source.contents(list(map(str, every))) if _is_path(every[0]) else list(map(source.sha256, every))

    def read(self, part: Part, row: int, side: int) -> np.ndarray:
        row = part.samples[row]
        try:
            image = imagefiles.upright(part.reader[0][row][0])
        except Exception as error:  # on damaged files the decoders raise whatever comes
            raise imagefiles.UnreadableError(f"{row} of {self.dataset}", first_line(error)) from None
        if torchvision_sets.find(self.dataset).bordered and side == BORDERED_SIDE:
            return np.pad(np.asarray(image), ((2, 2), (2, 2), (0, 0)))
        return imagefiles.cropped(image, side)


def _is_path(of: Any) -> bool:
    return isinstance(of, str | Path)


def opened(dataset: str, root: Path, note: Callable[[str], None] = flags.note) -> dict[str, Any]:
    """torchvision's objects of the parts, downloaded first by one process where they cannot be read.

    Raises:
        ConfigError: when they can be neither read nor downloaded; the sentence says what to do.
    """
    try:
        return _construct(dataset, root)
    except ConfigError:
        raise
    except Exception as error:  # files that are missing or damaged lead to whatever comes
        if not torchvision_sets.find(dataset).downloads:
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
        except ConfigError:
            raise
        except Exception as error:  # of the network, of archives that are cut off, of gdown
            raise ConfigError(
                "",
                f"{dataset} is not whole in {root} and could not be downloaded ({' '.join(str(error).split())}); check "
                "the network, put its files there in place of those that are, name another --data-dir, or take "
                "--dataset digits, which needs no network",
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
    from torchvision import __version__, datasets

    facts, name = torchvision_sets.find(dataset), dataset.removeprefix(TORCHVISION).partition("/")[0]
    if not hasattr(datasets, name):
        raise unusable(f"must be in the torchvision installed here ({__version__}), got {dataset}")
    reader = getattr(datasets, name)
    if name == "MNIST":
        # It prefers the files that an old version of it has left in processed/, which nobody can verify.
        reader = type(name, (reader,), {"_check_legacy_exist": lambda self: False})
    try:
        return {part: reader(str(root), **which, **facts.options, **options) for part, which in facts.parts.items()}
    except ImportError as error:
        raise unusable(f"needs {error.name} for {dataset}: install it") from None


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
    names = [_name(given[label]) if given else str(label) for label in used]
    unique = tuple(name if names.count(name) == 1 else f"{name} ({label})" for name, label in zip(names, used))
    return unique, {name: np.searchsorted(used, of).astype(np.int64) for name, of in labels.items()}


def _name(given: Any) -> str:
    return ", ".join(given) if isinstance(given, tuple) else str(given)


def _labels(part: Any) -> np.ndarray:
    for attribute in _LABELS:
        if hasattr(part, attribute):
            labels = np.asarray(getattr(part, attribute), dtype=np.int64)
            return labels if labels.ndim == 1 else labels[:, 0]  # QMNIST has more to say of an image
    pairs = part._samples if hasattr(part, "_samples") else part
    return np.array([pairs[row][1] for row in range(len(part))], dtype=np.int64)


def _sources(part: Any) -> Sequence[Any]:
    """What each image is read from: a file, or pixels; its position where that cannot be told."""
    for attribute in _SOURCES:
        if hasattr(part, attribute):
            images = getattr(part, attribute)
            first: Any = images[0]
            return [each[0] for each in images] if isinstance(first, tuple) else images  # type: ignore[no-any-return]
    return range(len(part))
