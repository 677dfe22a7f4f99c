"""Facts of data sets of arrays: how many samples there are, their statistics, and the digest of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from cifar_ray.config.errors import some
from cifar_ray.config.sections import Images
from cifar_ray.data import torchvision_sets, validation
from cifar_ray.data.datasets import BORDERED_SIDE, Dataset, DatasetSpec, Split, digest
from cifar_ray.tasks.regression import Regression

OTHERS = ("inputs", "length", "vocabulary", "features", "target_mean", "target_std", "test_copies", "val_copies")
"""Facts that a record and a data set have by the same names."""


def narrowed(rows: list[np.ndarray]) -> list[np.ndarray]:
    """Rows of features, those to train on first, as float32, where that rounds none by 1e-5 of its deviation."""
    short = [each.astype(np.float32) for each in rows]
    std = np.array(standard(rows[0])[1])  # 0 where nothing varies, and so nothing is to be kept apart
    rounding = np.max([np.abs(after - each).max(0) for after, each in zip(short, rows)], axis=0)
    return rows if (rounding > 1e-5 * np.where(std > 0, std, np.inf)).any() else short


def made(name: str, parts: Mapping[str, Split], classes: tuple[str, ...], facts: Images) -> Dataset:
    """The data set of ``train``, ``test`` and perhaps ``val``, with the facts of these samples."""
    assert facts.digest is not None
    of, unvaried = spec(name, facts), ""
    if constant := [name for name, std in zip(of.feature_names, of.std) if not std and of.inputs == "features"]:
        unvaried = f"without variation in training, and 0 everywhere: {some(constant)}"
    return Dataset(of, parts["train"], parts["test"], classes, facts.digest, unvaried, parts.get("val"))


def facts_of(parts: Mapping[str, Split], classes: int, features: tuple[str, ...] = ()) -> Images:
    """Counts, copies, mean and deviation of the training pixels per channel or of each feature; the digest of all."""
    train, test, val = parts["train"], len(parts["test"]), len(parts.get("val", ()))
    of_all = digest(*(parts[name] for name in ("train", "test", "val") if name in parts))
    facts = Images(classes, len(train), test, digest=of_all, val=val, inputs=train.kind, features=features)
    test_copies, val_copies = validation.copies(parts)
    facts = replace(facts, test_copies=test_copies, val_copies=val_copies)
    if _are_of_regression(targets := train.columns.get(Regression.target)):
        mean, std = standard(targets)
        facts = replace(facts, target_mean=mean, target_std=std)
    if train.kind == "tokens":
        most = max(1, *(int(split.inputs.max()) for split in parts.values()))
        return replace(facts, length=train.inputs.shape[1], vocabulary=most + 1)
    if train.kind == "features":
        mean, std = standard(train.inputs)
        return replace(facts, length=train.inputs.shape[1], mean=mean, std=std)
    counts = np.zeros((3, 256), dtype=np.int64)
    for chunk in np.array_split(train.images, max(len(train.images) // 1024, 1)):
        for channel in range(3):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ values
    std = np.sqrt(np.maximum(shares @ values**2 - mean**2, 0))
    return replace(
        facts,
        side=train.images.shape[1],
        mean=tuple(round(float(value), 4) for value in mean),
        std=tuple(max(round(float(value), 4), 1e-4) for value in std),  # a channel may be one colour
    )


def _are_of_regression(targets: np.ndarray | None) -> TypeGuard[np.ndarray]:
    """Whether targets are as a regression has them: a task of the user's own may give others the same name."""
    return (
        targets is not None and targets.dtype == np.float64 and targets.ndim == 2 and bool(np.isfinite(targets).all())
    )


def described(dataset: Dataset) -> Images:
    """What is in a data set that has been read."""
    spec = dataset.spec
    counts = (spec.num_classes, spec.train_size, spec.test_size)
    others: dict[str, Any] = {name: getattr(spec, name) for name in OTHERS}
    return Images(*counts, spec.image_size, spec.mean, spec.std, dataset.digest, spec.val_size, **others)


def standard(rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column of rows (N, length); exactly 0 where all values are the same."""
    values = rows.astype(np.float64)
    return tuple(values.mean(0).tolist()), tuple(np.where(np.ptp(values, 0) > 0, values.std(0), 0.0).tolist())


def spec(name: str, images: Images) -> DatasetSpec:
    """The facts of a data set that has been looked at; its mean is 0 and its deviation 1 until all has been read."""
    facts = torchvision_sets.known(name)
    is_bordered = facts is not None and facts.bordered and images.side == BORDERED_SIDE
    numbers = {"images": 3, "features": images.length, "tokens": 0}[images.inputs]  # that are normalised
    return DatasetSpec(
        name,
        images.classes,
        images.train,
        images.test,
        tuple(images.mean) or (0.0,) * numbers,
        tuple(images.std) or (1.0,) * numbers,
        flip=facts is None or facts.flip,
        native_size=images.side - 4 * is_bordered,
        grey=is_bordered,
        image_size=images.side,
        crop=not is_bordered,
        val_size=images.val,
        **{name: getattr(images, name) for name in OTHERS},
    )
