"""Data sets of arrays: those of a function of the user's own, ``--dataset MODULE:FUNCTION``, and their facts.

The function returns ``(images, labels), (images, labels)``, for training and for the test, and may return the names of
the classes after them: uint8 images (N, side, side, 3) or (N, side, side) and whole numbers (N,). For another task it
returns what that learns in place of labels. In place of images it may return rows of finite numbers, floating (N,
length), or texts as whole numbers (N, length) with 0 as padding.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from cifar_ray.config.errors import ConfigError, brief, some
from cifar_ray.config.sections import Images, Inputs
from cifar_ray.data import torchvision_sets, validation
from cifar_ray.data.datasets import BORDERED_SIDE, Dataset, DatasetSpec, Split, digest, unusable
from cifar_ray.tasks import imports
from cifar_ray.tasks.protocol import Task
from cifar_ray.tasks.regression import Regression

_RULE = (
    "must return (images, {target}) for training and for the test, and perhaps the {names}' names: uint8 images "
    "(N, side, side, 3) or (N, side, side) of one size, or finite features or tokens (N, length), and {rule}"
)


_FLOATS = (np.float32, np.float64)

OTHERS = ("inputs", "length", "vocabulary", "features", "target_mean", "target_std", "test_copies", "val_copies")
"""Facts that a record and a data set have by the same names."""


@functools.cache
def from_function(path: str, task: type[Task], val_share: float = 0.0) -> Dataset:
    """What the user's function returns, once in a process, for a task that learns of it.

    ``val_share``: of the training images, for validation.

    Raises:
        ConfigError: when it fails, or returns something else, or validation would leave nothing of a class.
    """
    if val_share:
        whole = from_function(path, task)
        train, val = validation.cut(whole.train, whole.class_names, val_share)
        return made(path, {"train": train, "test": whole.test, "val": val}, whole.class_names)
    with imports.calling(path, "dataset", "must return arrays"):
        returned = imports.load(path, "dataset")()
    try:
        return _checked(path, returned, task)
    except ValueError as error:
        names = "classes" if task.spec.names == "classes" else "outputs"
        rule = _RULE.format(target=task.target, names=names, rule=task.rule)
        raise unusable(f"{rule}; {path} returns {error}") from None


def _checked(path: str, returned: Any, task: type[Task]) -> Dataset:
    """The data set of what a function returned; a ValueError says what is wrong with it."""
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        raise ValueError(brief(returned))
    train, test = (_half(half, name, task.target) for half, name in zip(returned, ("training", "test")))
    if train.kind != test.kind or train.inputs.shape[1:] != test.inputs.shape[1:]:
        sizes = [f"{half.kind} of {half.inputs.shape[1:3]}" for half in (train, test)]
        raise ValueError(f"{sizes[0]} for training and {sizes[1]} for the test")
    train, test = narrowed(train, test)
    names = returned[2] if len(returned) == 3 else None
    if len(returned) == 3 and not isinstance(names, list | tuple | range):
        raise ValueError(f"{brief(names)} as names")
    try:
        checked = task.targets(train[task.target], test[task.target], names)
    except ValueError:
        raise
    except Exception as error:
        raise ConfigError("task", f"must check targets, and {task.__name__} fails: {imports.told(error)}") from None
    for half, given in zip((checked.train, checked.test), (train.inputs, test.inputs)):
        if len(half) != len(given) or (half.dtype.kind not in "iub" and half.dtype not in _FLOATS):
            raise ValueError(f"{task.target} of {half.dtype} {half.shape} for {len(given)} {train.kind}")
        if task.spec.answer == "masks" and half.shape != given.shape[:3]:
            raise ValueError(f"{task.target} of {half.shape[1:]} for images of {given.shape[1:3]}")
    if len(set(checked.names)) < len(checked.names) or not all(isinstance(name, str) for name in checked.names):
        raise ValueError(f"{brief(checked.names)} as names")
    learned, tested = (
        Split({half.kind: half.inputs, task.target: np.ascontiguousarray(target)})
        for half, target in zip((train, test), (checked.train, checked.test))
    )
    return made(path, {"train": learned, "test": tested}, checked.names)


def _half(half: Any, name: str, target: str) -> Split:
    """One half of what a function returned; a ValueError says what is wrong with it."""
    try:
        inputs, targets = map(np.asarray, half)
    except (TypeError, ValueError, RuntimeError):  # torch's tensors that have a gradient raise the last one
        raise ValueError(f"{brief(half)} for {name}") from None
    kind, checked = _of_kind(inputs)
    if checked is None or not inputs.size:
        raise ValueError(f"{name} {kind} of {inputs.dtype} {inputs.shape}")
    if kind == "tokens" and ((checked[:, :-1] == 0) & (checked[:, 1:] != 0)).any():
        raise ValueError(f"{name} tokens with a 0, which is padding, before others")
    if targets.shape[:1] != inputs.shape[:1]:
        raise ValueError(f"{name} {target} of {targets.dtype} {targets.shape} for {len(inputs)} {kind}")
    return Split({kind: np.ascontiguousarray(checked), target: targets})


def _of_kind(inputs: np.ndarray) -> tuple[Inputs, np.ndarray | None]:
    """What a model is given, as a split has it, and its kind; None where it cannot be that."""
    if inputs.ndim == 2 and inputs.dtype.kind == "f":
        fits = (np.abs(inputs) <= np.finfo(np.float32).max).all()
        return "features", inputs.astype(np.float64) if fits else None
    if inputs.ndim == 2 and inputs.dtype.kind in "iu":
        fits = inputs.min(initial=0) >= 0 and inputs.max(initial=0) < np.iinfo(np.int32).max
        return "tokens", inputs.astype(np.int32) if fits else None
    if inputs.ndim == 3:
        inputs = np.repeat(inputs[..., None], 3, axis=3)
    is_square = inputs.ndim == 4 and inputs.shape[1:] == (inputs.shape[1], inputs.shape[1], 3)
    return "images", inputs if inputs.dtype == np.uint8 and is_square else None


def narrowed(train: Split, *others: Split) -> list[Split]:
    """The same splits, with features as float32, half as large, where that rounds none by 1e-5 of its deviation."""
    splits = [train, *others]
    if train.kind != "features":
        return splits
    short = [split.inputs.astype(np.float32) for split in splits]
    std = np.array(standard(train.inputs)[1])  # 0 where nothing varies, and so nothing is to be kept apart
    rounding = np.max([np.abs(rows - split.inputs).max(0) for rows, split in zip(short, splits)], axis=0)
    if (rounding > 1e-5 * np.where(std > 0, std, np.inf)).any():
        return splits
    return [Split({**split.columns, "features": rows}) for rows, split in zip(short, splits)]


def made(name: str, parts: Mapping[str, Split], classes: tuple[str, ...], facts: Images | None = None) -> Dataset:
    """The data set of ``train``, ``test`` and perhaps ``val``; its facts are those found before, or of these pixels."""
    facts = facts or facts_of(parts, len(classes))
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
