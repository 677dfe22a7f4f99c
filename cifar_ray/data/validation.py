"""Which training samples are kept for validation: a pure function of the samples and the share.

Neither the seed nor the test set moves a sample. A larger share keeps what a smaller one has kept, and more.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable, Sequence

import numpy as np

from cifar_ray.config.errors import ConfigError
from cifar_ray.data.datasets import Dataset, Split, digest


def rows(
    keys: Sequence[bytes], contents: Sequence[Hashable], classes: np.ndarray, names: Sequence[str], share: float
) -> np.ndarray:
    """Whether each sample is kept for validation: of each class the share with the lowest SHA-256 of their keys.

    Equal samples are on one side, that of the first of them.

    Args:
        keys: what a sample's hash is made of.
        contents: equal for equal samples.
        classes: number of each sample's class.
        names: of the classes.
        share: above 0 and below 1; at least one sample of each class is kept.

    Returns:
        bool, (N,).

    Raises:
        ConfigError: naming a class of which no sample would be left on one side.
    """
    equal: dict[Hashable, list[int]] = {}
    for row, content in enumerate(contents):
        equal.setdefault(content, []).append(row)
    groups: dict[int, list[list[int]]] = {}
    for group in equal.values():
        groups.setdefault(int(classes[group[0]]), []).append(group)
    kept = np.zeros(len(keys), dtype=bool)
    for label, wanted in enumerate(np.bincount(classes, minlength=len(names))):
        left = max(round(share * wanted), 1)
        for group in sorted(groups.get(label, ()), key=lambda group: hashlib.sha256(keys[group[0]]).digest()):
            if left > 0:
                kept[group] = True
                left -= int((classes[group] == label).sum())
    for label, name in enumerate(names):
        of_class = kept[classes == label]
        if of_class.all() or not of_class.any():
            side = "learn from" if of_class.all() else "validate with"
            has = f"class {name!r} has {len(of_class):,}" if name else f"there are {len(of_class):,}"
            what = "a sample of every class" if name else "something"
            raise ConfigError("val_share", f"must leave {what} to {side}, got {share:g}, and {has}")
    return kept


def cut(train: Split, names: Sequence[str], share: float) -> tuple[Split, Split]:
    """Samples to train on, and those kept for validation, of what was published for training.

    They are drawn by class and position; where they have no labels, by position alone.

    Raises:
        ConfigError: as :func:`rows`.
    """
    labels = train.columns.get("labels")
    if labels is None or not _are_classes(labels, names):
        labels, names = np.zeros(len(train), dtype=np.int64), ("",)
    contents = [hashlib.sha256(np.ascontiguousarray(row).data).digest() for row in train.inputs]
    keys = [f"{label} {position}".encode() for position, label in enumerate(labels.tolist())]
    kept = rows(keys, contents, labels, names, share)
    return train.at(~kept), train.at(kept)


def _are_classes(labels: np.ndarray, names: Sequence[str]) -> bool:
    """Whether a column has the numbers of these classes: a task of the user's own may learn other labels."""
    is_whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    return is_whole and np.array_equal(np.unique(labels), np.arange(len(names)))


def published(dataset: Dataset, share: float) -> Dataset:
    """A data set of this package with that share of its training images kept for validation."""
    train, val = cut(dataset.train, dataset.class_names, share)
    spec = dataclasses.replace(dataset.spec, train_size=len(train), val_size=len(val))
    return dataclasses.replace(dataset, spec=spec, train=train, val=val, digest=digest(train, dataset.test, val))
