"""Data sets of torchvision, ``--dataset torchvision:NAME``: read and downloaded by torchvision's own classes.

Those of :mod:`cifar_ray.config.torchvision_sets`. Images are brought to one size as those of a folder are; those in
MNIST's format get a border of 2 zeros to 32x32, as ``--dataset mnist`` has them.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cifar_ray.config import flags
from cifar_ray.config.errors import ConfigError, first_line
from cifar_ray.config.option import TORCHVISION
from cifar_ray.config.sections import Images
from cifar_ray.config.torchvision_sets import SETS, PublishedSet
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import decoded, folders, imagefiles, published, validation
from cifar_ray.data.datasets import BORDERED_SIDE, Dataset, folder, unusable

# torchvision gives no public way to labels without images. Where a class has none of these, images are read for them.
_LABELS = ("targets", "labels", "_labels")
_SOURCES = ("data", "_image_files", "_images", "samples", "_samples", "imgs")


def look(config: TrainConfig) -> Images:
    """What is in the data set, which is downloaded when it is not there; no image is decoded.

    Raises:
        ConfigError: when it can be neither read nor downloaded.
    """
    _check_share(config)
    classes, sizes = _counts(config.dataset, folder(config.data_dir))
    kept = round(sizes["train"] * (config.val_share or 0.0))  # to a few images until they have been read
    return Images(classes, sizes["train"] - kept, sizes["test"], config.image_size, val=sizes.get("val", kept))


def load(config: TrainConfig, progress: decoded.Progress) -> Dataset:
    """Read the data set; its images are brought to one size when they have not been, or have changed.

    Raises:
        ConfigError: when it cannot be read.
    """
    _check_share(config)
    parts = _opened(config.dataset, folder(config.data_dir))
    classes, labels = _classes(config.dataset, parts)
    rows = {name: np.arange(len(part)) for name, part in parts.items()}
    source = {name: name for name in parts}
    sources = {name: _sources(part) for name, part in parts.items()}
    try:
        if config.val_share:
            kept = _kept(sources["train"], labels["train"], classes, config.val_share)
            rows |= {"train": np.flatnonzero(~kept), "val": np.flatnonzero(kept)}
            source["val"] = "train"
        marks = (
            (_mark(sources[of][row], labels[of][row]) for row in rows[name].tolist()) for name, of in source.items()
        )
        key = decoded.key(config.image_size, config.dataset, classes, marks)
    except OSError as error:  # some of torchvision's classes list files that they do not look for
        reason = f"{error.filename} cannot be read ({error.strerror})"
        raise unusable(f"must have all files of {config.dataset}, and {reason}") from None
    wanted = {
        name: decoded.Part(labels[of][rows[name]], functools.partial(_image, config, parts[of], rows[name]))
        for name, of in source.items()
    }
    return decoded.provide(config, config.dataset_name, key, wanted, classes, progress)


def _facts(dataset: str) -> PublishedSet:
    return SETS[dataset.removeprefix(TORCHVISION)]


def _check_share(config: TrainConfig) -> None:
    if config.val_share and "val" in _facts(config.dataset).parts:
        raise ConfigError("val_share", f"is for data without validation images, and {config.dataset} has some")


@functools.cache
def _counts(dataset: str, root: Path) -> tuple[int, dict[str, int]]:
    """The number of classes, and that of each part's images."""
    parts = _opened(dataset, root)
    classes, _ = _classes(dataset, parts)
    return len(classes), {name: len(part) for name, part in parts.items()}


def _opened(dataset: str, root: Path) -> dict[str, Any]:
    """torchvision's objects of the parts, downloaded first by one process where they cannot be read."""
    name = dataset.removeprefix(TORCHVISION).replace("/", ".")
    with _locked(dataset, root, name):
        try:
            return _construct(dataset, root)
        except ConfigError:
            raise
        except Exception as error:  # files that are missing or damaged lead to whatever comes
            if not _facts(dataset).downloads:
                raise unusable(f"must be in {root}, where {dataset} cannot be read: {first_line(error)}") from None
        flags.note(f"downloading {dataset} to {root}")
        partial = root / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with published.downloading(dataset, root, root):
            _construct(dataset, partial, download=True)
        for path in partial.iterdir():
            if not (root / path.name).exists():
                path.rename(root / path.name)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            return _construct(dataset, root)
        except Exception as error:
            raise ConfigError(
                "", f"cannot read {dataset} from {root} ({first_line(error)}): remove its files there and run again"
            ) from None


@contextmanager
def _locked(dataset: str, root: Path, name: str) -> Iterator[None]:
    lock = FileLock(root / f".{name}.lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise ConfigError(
            "data_dir", f"must be a folder that can be written for {dataset}, and {root} cannot be ({error.strerror})"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _construct(dataset: str, root: Path, **options: Any) -> dict[str, Any]:
    from torchvision import __version__, datasets

    facts, name = _facts(dataset), dataset.removeprefix(TORCHVISION).partition("/")[0]
    if not hasattr(datasets, name):
        raise unusable(f"must be in the torchvision installed here ({__version__}), got {dataset}")
    reader = getattr(datasets, name)
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


def _mark(source: Any, label: int) -> bytes:
    """What tells an image and its label from others."""
    if isinstance(source, str | Path):
        return decoded.mark(str(source), label)
    return b"%d " % label + np.asarray(source).tobytes()


def _kept(sources: Sequence[Any], labels: np.ndarray, classes: Sequence[str], share: float) -> np.ndarray:
    """Which training images are kept for validation, as of the data sets of this package."""
    keys = [f"{label} {position}".encode() for position, label in enumerate(labels.tolist())]
    if isinstance(sources[0], str | Path):
        contents: Sequence[Any] = folders.contents([str(path) for path in sources])
    else:
        contents = [hashlib.sha256(np.asarray(source).tobytes()).digest() for source in sources]
    return validation.rows(keys, contents, labels, classes, share)


def _image(config: TrainConfig, part: Any, rows: np.ndarray, position: int) -> np.ndarray:
    row, side = int(rows[position]), config.image_size
    try:
        image = imagefiles.upright(part[row][0])
    except Exception as error:  # on damaged files the decoders raise whatever comes
        raise imagefiles.UnreadableError(f"{row} of {config.dataset}", first_line(error)) from None
    if _facts(config.dataset).bordered and side == BORDERED_SIDE:
        return np.pad(np.asarray(image), ((2, 2), (2, 2), (0, 0)))
    return imagefiles.cropped(image, side)
