"""Facts of data sets of arrays: how many samples there are, their statistics, and the digest of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cifar_ray.config.errors import some
from cifar_ray.config.facts import Facts
from cifar_ray.config.option import TORCHVISION
from cifar_ray.data import torchvision_sets, validation
from cifar_ray.data.datasets import BORDERED_SIDE, Dataset, Split, digest
from cifar_ray.tasks.regression import Regression
from cifar_ray.tasks.spec import IGNORED


def narrowed(rows: list[np.ndarray]) -> list[np.ndarray]:
    """Rows of features, those to train on first, as float32, where that rounds none by 1e-5 of its deviation."""
    short = [each.astype(np.float32) for each in rows]
    std = np.array(standard(rows[0])[1])  # 0 where nothing varies, and so nothing is to be kept apart
    rounding = np.max([np.abs(after - each).max(0) for after, each in zip(short, rows)], axis=0)
    return rows if (rounding > 1e-5 * np.where(std > 0, std, np.inf)).any() else short


def made(name: str, parts: Mapping[str, Split], facts: Facts) -> Dataset:
    """The data set of ``train``, ``test`` and perhaps ``val``, with the facts of these samples."""
    constant = [feature for feature, std in zip(facts.feature_names, facts.std) if not std]
    unvaried = f"without variation in training, and 0 everywhere: {some(constant)}" if constant else ""
    return Dataset(name, facts, parts["train"], parts["test"], unvaried, parts.get("val"))


def of_images(dataset: str, side: int) -> dict[str, Any]:
    """The facts of images brought to ``side``, as far as a data set's name tells."""
    name = dataset.removeprefix(TORCHVISION)
    is_bordered = name in torchvision_sets.BORDERED and side == BORDERED_SIDE
    size, flip = side - 4 * is_bordered, name not in torchvision_sets.UNFLIPPED
    return {"shape": (3, side, side), "native_size": size, "grey": is_bordered, "crop": not is_bordered, "flip": flip}


def facts_of(dataset: str, parts: Mapping[str, Split], names: tuple[str, ...], features: tuple[str, ...] = ()) -> Facts:
    """Counts, copies, mean and deviation of the training pixels per channel or of each feature; the digest of all."""
    train, test, val = parts["train"], len(parts["test"]), len(parts.get("val", ()))
    of_all = digest(*(parts[name] for name in ("train", "test", "val") if name in parts))
    facts = Facts(len(names), len(train), test, val, train.kind, names=names, features=features, digest=of_all)
    test_copies, val_copies = validation.copies(parts)
    masks = [_values(part["masks"]) for part in (train, parts["test"]) if _has_masks(part)]
    facts = replace(
        facts,
        test_copies=test_copies,
        val_copies=val_copies,
        class_counts=class_counts(train, len(names)),
        ignored=tuple(int(counts[IGNORED]) for counts in masks),
    )
    targets = train.columns.get(Regression.target)  # a task of the user's own may give others the same name
    if targets is not None and targets.dtype == np.float64 and targets.ndim == 2 and np.isfinite(targets).all():
        mean, std = standard(targets)
        facts = replace(facts, target_mean=mean, target_std=std)
    if train.kind == "tokens":
        most = max(1, *(int(split.inputs.max()) for split in parts.values()))
        return replace(facts, shape=train.inputs.shape[1:], vocabulary=most + 1)
    if train.kind == "features":
        mean, std = standard(train.inputs)
        return replace(facts, shape=train.inputs.shape[1:], mean=mean, std=std)
    pixels = np.array([_values(train.inputs[..., channel]) for channel in range(3)])
    values = np.arange(256) / 255
    shares = pixels / pixels.sum(1, keepdims=True)
    means = shares @ values
    stds = np.sqrt(np.maximum(shares @ values**2 - means**2, 0))
    return replace(
        facts,
        **of_images(dataset, train.inputs.shape[1]),
        mean=tuple(round(float(value), 4) for value in means),
        std=tuple(max(round(float(value), 4), 1e-4) for value in stds),  # a channel may be one colour
    )


def class_counts(train: Split, classes: int) -> tuple[int, ...]:
    """Training samples of each class, or pixels of masks; empty where a task of the user's own learns other things."""
    if _has_masks(train):
        return tuple(_values(train["masks"])[:classes].tolist())
    labels = train.columns.get("labels")
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0:
        return ()
    counts = np.bincount(labels, minlength=classes)
    return tuple(counts.tolist()) if len(counts) == classes else ()


def _has_masks(split: Split) -> bool:
    return "masks" in split.columns and split["masks"].dtype == np.uint8


def _values(array: np.ndarray) -> np.ndarray:
    """How often each of 256 values occurs in an array of uint8."""
    parts = np.array_split(array, max(len(array) // 1024, 1))  # bincount makes int64 of each
    return np.sum([np.bincount(part.ravel(), minlength=256) for part in parts], axis=0)  # type: ignore[no-any-return]


def standard(rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column of rows (N, length); exactly 0 where all values are the same."""
    values = rows.astype(np.float64)
    return tuple(values.mean(0).tolist()), tuple(np.where(np.ptp(values, 0) > 0, values.std(0), 0.0).tolist())
