"""Which samples are kept for the test or for validation: a pure function of the samples and the share.

The seed does not move a sample, nor the test set one of validation. A larger share keeps what a smaller one has kept,
and more.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from cifar_ray.config.errors import ConfigError
from cifar_ray.data.datasets import Dataset, Split, digest


def _hashed(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def rows(
    keys: Sequence[Any],
    contents: Sequence[Hashable],
    classes: np.ndarray,
    names: Sequence[str],
    share: float,
    option: str = "val_share",
    rank: Callable[[Any], Any] = _hashed,
) -> np.ndarray:
    """Whether each sample is kept for validation, or the test: of each class the share with the lowest ranks.

    Equal samples are on one side, that of the first of them, whatever their classes.

    Args:
        keys: what a sample's rank is made of.
        contents: equal for equal samples.
        classes: number of each sample's class.
        names: of the classes.
        share: above 0 and below 1; at least one sample of each class is kept.
        option: ``val_share`` or ``test_share``, which a refusal names.
        rank: of a key; by default, the SHA-256 of its bytes.

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
        for group in sorted(groups.get(label, ()), key=lambda group: rank(keys[group[0]])):
            if left > 0:
                kept[group] = True
                left -= int((classes[group] == label).sum())
    for label, name in enumerate(names):
        of_class = kept[classes == label]
        if of_class.all() or not of_class.any():
            side = "learn from" if of_class.all() else "validate with" if option == "val_share" else "test with"
            has = f"class {name!r} has {len(of_class):,}" if name else f"there are {len(of_class):,}"
            what = "a sample of every class" if name else "something"
            raise ConfigError(option, f"must leave {what} to {side}, got {share:g}, and {has}")
    return kept


def copies(parts: Mapping[str, Split]) -> tuple[int, int]:
    """Test samples whose inputs training or validation samples have, too, and validation samples so of training."""
    inputs = {name: [hash(row.tobytes()) for row in part.inputs] for name, part in parts.items()}
    learned, val = set(inputs["train"]), inputs.get("val", [])
    known = learned.union(val)
    return sum(row in known for row in inputs["test"]), sum(row in learned for row in val)


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
