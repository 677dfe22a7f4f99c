"""Data sets of arrays: those of a function of the user's own, ``--dataset MODULE:FUNCTION``, and their facts.

The function returns ``(images, labels), (images, labels)``, for training and for the test, and may return the names of
the classes after them: uint8 images (N, side, side, 3) or (N, side, side) and whole numbers (N,).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.sections import Images
from cifar_ray.data.datasets import Dataset, DatasetSpec, Split, digest

_RULE = (
    "must return (images, labels) for training and for the test, and perhaps the classes' names: uint8 images "
    "(N, side, side, 3) or (N, side, side) of one size, and for each a whole number from 0, without a gap"
)


@functools.cache
def from_function(path: str) -> Dataset:
    """What the user's function returns, once in a process.

    Raises:
        ConfigError: when it fails, or returns something else.
    """
    with imports.calling(path, "dataset", "must return arrays"):
        returned = imports.load(path, "dataset")()
    try:
        return _checked(path, returned)
    except ValueError as error:
        raise ConfigError("dataset", f"{_RULE}; {path} returns {error}") from None


def _checked(path: str, returned: Any) -> Dataset:
    """The data set of what a function returned; a ValueError says what is wrong with it."""
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        raise ValueError(brief(returned))
    train, test = _split(returned[0], "training"), _split(returned[1], "test")
    if train.images.shape[1:] != test.images.shape[1:]:
        raise ValueError(f"images of {train.images.shape[1:3]} for training and {test.images.shape[1:3]} for the test")
    labels = np.unique(train.labels)
    if len(labels) < 2 or labels.tolist() != list(range(len(labels))) or not np.isin(test.labels, labels).all():
        last = max(labels[-1], test.labels.max())
        raise ValueError(f"{len(labels)} kinds of labels for training, and labels from {labels[0]} to {last}")
    given = returned[2] if len(returned) == 3 else range(len(labels))
    names = tuple(map(str, given)) if isinstance(given, list | tuple | range) else ()
    if len(set(names)) != len(labels) or len(names) != len(labels):
        raise ValueError(f"{brief(given)} as the names of {len(labels)} classes")
    return made(path, train, test, names)


def _split(half: Any, name: str) -> Split:
    """One half of what a function returned, as the loader takes it; a ValueError says what is wrong with it."""
    try:
        images, labels = map(np.asarray, half)
    except (TypeError, ValueError, RuntimeError):  # torch's tensors that have a gradient raise the last one
        raise ValueError(f"{brief(half)} for {name}") from None
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=3)
    is_square = images.ndim == 4 and images.shape[1:] == (images.shape[1], images.shape[1], 3)
    if images.dtype != np.uint8 or not images.size or not is_square:
        raise ValueError(f"{name} images of {images.dtype} {images.shape}")
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{name} labels of {labels.dtype} {labels.shape} for {len(images)} images")
    return Split(np.ascontiguousarray(images), labels.astype(np.int64))


def made(name: str, train: Split, test: Split, classes: tuple[str, ...], facts: Images | None = None) -> Dataset:
    """The data set of two halves; its facts are those found before, or else of these pixels."""
    facts = facts or facts_of(train, test, len(classes))
    assert facts.digest is not None
    return Dataset(spec(name, facts), train, test, classes, facts.digest)


def facts_of(train: Split, test: Split, classes: int) -> Images:
    """Counts, mean and deviation of the training pixels per channel, and the digest of all."""
    counts = np.zeros((3, 256), dtype=np.int64)
    for chunk in np.array_split(train.images, max(len(train.images) // 1024, 1)):
        for channel in range(3):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ values
    std = np.sqrt(np.maximum(shares @ values**2 - mean**2, 0))
    return Images(
        classes,
        len(train.labels),
        len(test.labels),
        train.images.shape[1],
        tuple(round(float(value), 4) for value in mean),
        tuple(max(round(float(value), 4), 1e-4) for value in std),  # a channel may be one colour
        digest(train, test),
    )


def spec(name: str, images: Images) -> DatasetSpec:
    """The facts of a data set that has been looked at; its mean is 0 and its deviation 1 until all has been read."""
    return DatasetSpec(
        name,
        images.classes,
        images.train,
        images.test,
        tuple(images.mean) or (0.0, 0.0, 0.0),
        tuple(images.std) or (1.0, 1.0, 1.0),
        flip=True,
        native_size=images.side,
        image_size=images.side,
        crop=True,
    )
