"""Data sets in memory, and those that are known by name.

A sample is a row of named columns: one of :data:`INPUTS`, which the model is given, and one that it learns.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, some
from cifar_ray.config.sections import Inputs
from cifar_ray.tasks.spec import IGNORED

if TYPE_CHECKING:
    import torch

CONSTANTS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation per channel by which pixels may be normalised in place of a data set's own."""

INPUTS: tuple[Inputs, ...] = get_args(Inputs)
"""What a model may be given of a sample, by the column that has it:

- ``images``: uint8 (N, side, side, 3), channels last; a model takes them normalised, float32 (B, C, H, W).
- ``features``: rows of numbers, float32 or float64 (N, length); a model takes them standardised, float32 (B, length).
- ``tokens``: texts, int32 (N, length), numbers below the vocabulary, with 0 as padding behind a shorter text; a model
  takes them as int64 (B, length).
"""

BORDERED_SIDE = 32
"""Side of an image in MNIST's format once it has its border."""

_ABOUT_EQUAL = 1.25
"""How many times as many images as another a class may have to count as equal; in MNIST it is 1.24."""


def unusable(problem: str) -> ConfigError:
    """The error about a data set that cannot be learned from: what it must have, and what it has."""
    return ConfigError("dataset", problem)


@dataclass(frozen=True)
class DatasetSpec:
    """Facts about a data set that hold before it is read.

    Attributes:
        name: its name on the command line.
        num_classes: numbers that a model gives for a sample: labels run from 0 to ``num_classes - 1``.
        train_size: training samples.
        test_size: test samples.
        val_size: validation samples.
        inputs: what the model is given of a sample; see :data:`INPUTS`. What follows of images is only of them.
        length: numbers in a row of features, or tokens in a text; 0 of images.
        vocabulary: above every token; 0 of others.
        features: names of the features, in their order.
        target_mean: mean of each target of a regression over the training samples.
        target_std: standard deviation of each target over the training samples.
        test_copies: test samples that a model cannot tell from training or validation samples.
        val_copies: validation samples that a model cannot tell from training samples.
        mean: mean of the training pixels per channel, on a scale of 0 to 1; or of each feature.
        std: standard deviation of the training pixels per channel, on the same scale; or of each feature.
        flip: whether a mirrored image still shows its class.
        native_size: side of an image in pixels, as published.
        grey: whether the published images have one channel.
        image_size: side of an image in pixels, as the models get it.
        channels: channels of an image, as the models get it.
        crop: whether what is cut off of an image that is no square is the margin, and not its shape.
    """

    name: str
    num_classes: int
    train_size: int
    test_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    native_size: int = 32
    grey: bool = False
    image_size: int = 32
    channels: int = 3
    crop: bool = False
    val_size: int = 0
    inputs: Inputs = "images"
    length: int = 0
    vocabulary: int = 0
    features: tuple[str, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    test_copies: int = 0
    val_copies: int = 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of what a model takes of one sample: (C, H, W), or (length,)."""
        return (self.channels, self.image_size, self.image_size) if self.inputs == "images" else (self.length,)

    @property
    def sizes(self) -> dict[str, int]:
        """What a function that builds a model is given, in this order, by the names of its arguments."""
        classes = {"classes": self.num_classes}
        if self.inputs == "images":
            return {"image_size": self.image_size, "channels": self.channels, **classes}
        if self.inputs == "features":
            return {"features": self.length, **classes}
        return {"vocabulary": self.vocabulary, "length": self.length, **classes}

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features; their numbers where they have none."""
        return self.features or tuple(map(str, range(self.length)))

    def example(self, count: int, device: torch.device | str | None = None) -> torch.Tensor:
        """So many samples of noise, as a model takes them: (count, ``*input_shape``).

        They are drawn from torch's generator.
        """
        import torch

        shape = (count, *self.input_shape)
        if self.inputs == "tokens":
            return torch.randint(1, self.vocabulary, shape, device=device)
        return torch.rand(shape, device=device)

    def normalised(self, by: str) -> DatasetSpec:
        """The same, where pixels are normalised as a config's ``normalise`` says."""
        if by == "dataset" or self.inputs != "images":
            return self
        mean, std = CONSTANTS[by]
        return replace(self, mean=mean, std=std)


@dataclass(frozen=True)
class Split:
    """Training or test samples, as rows of named columns: one of :data:`INPUTS`, and what a task learns of it.

    Attributes:
        columns: name -> array whose first axis counts the samples. ``images`` may be read-only, and may stay on disk.
            ``labels``, where it has them, are int64 (N,).
    """

    columns: Mapping[str, np.ndarray]

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def kind(self) -> Inputs:
        """The column that the model is given."""
        return next(name for name in INPUTS if name in self.columns)

    @property
    def inputs(self) -> np.ndarray:
        """What the model is given."""
        return self.columns[self.kind]

    @property
    def images(self) -> np.ndarray:
        """The images of a split that has them."""
        return self.columns["images"]

    def at(self, rows: Any) -> Split:
        """Some of the samples, as NumPy chooses rows."""
        return Split({name: column[rows] for name, column in self.columns.items()})

    @property
    def file(self) -> str | None:
        """Where all its images are, if they stay on disk; other processes are told this path, which they must have."""
        # Some rows of such a file are a memmap with its name, too.
        is_whole = isinstance(self.inputs, np.memmap) and isinstance(self.inputs.base, mmap.mmap)
        return str(self.inputs.filename) if is_whole else None  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.file is None:
            return Split, ({name: np.asarray(column) for name, column in self.columns.items()},)
        return _mapped, (self.file, {name: column for name, column in self.columns.items() if name != "images"})


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Attributes:
        spec: its fixed facts.
        train: training samples.
        test: test samples.
        class_names: one for each number that a model gives for a sample, such as its labels.
        digest: first 16 hex digits of the SHA-256 over all columns.
        encoding: what made numbers of what people have, as JSON: of texts, their tokenizer; empty of others.
        left_out: what was found beside the images and is not used, or otherwise than its name says, in words.
        val: validation samples; None without.
    """

    spec: DatasetSpec
    train: Split
    test: Split
    class_names: tuple[str, ...]
    digest: str
    left_out: str = ""
    val: Split | None = None
    encoding: str = ""

    def contents(self, names: str, unit: str = "images") -> str:
        """``4 classes, 960 training and 240 test images; 124 files left out (.heic 120, .txt 4)``.

        ``names``: of what a task has numbers, ``classes`` or ``values``; ``unit``: its word for samples.
        """
        spec = self.spec
        learned = f"{spec.train_size:,} training" + (f", {spec.val_size:,} validation" if spec.val_size else "")
        number = f"{spec.num_classes:,} {names if spec.num_classes > 1 else names[:-1]}"
        counts = f"{number}, {learned} and {spec.test_size:,} test {unit}"
        return "; ".join(filter(None, (counts, self._not_counted, self.left_out)))

    @property
    def _not_counted(self) -> str:
        """``5.1 % of training and 4.9 % of test pixels do not count``; empty where all do."""
        masks = [split.columns.get("masks", np.empty(0)) for split in (self.train, self.test)]
        ignored = [sum(np.count_nonzero(mask == IGNORED) for mask in each) for each in masks]
        if not any(ignored):
            return ""
        train, test = (f"{100 * count / each.size:.1f} %" for count, each in zip(ignored, masks))
        return f"{train} of training and {test} of test pixels do not count"

    def caution(self, unit: str = "images") -> str:
        """How many test and validation samples are copies, which flatter the figures; empty where none is."""
        spec, said = self.spec, []
        if spec.test_copies:
            others = f"training{' or validation' * bool(spec.val_size)} {unit}"
            said.append(f"{spec.test_copies:,} of {spec.test_size:,} test {unit} are copies of {others}")
        if spec.val_copies:
            said.append(f"{spec.val_copies:,} of {spec.val_size:,} validation {unit} are copies of training {unit}")
        return f"caution: as the model gets them, {' and '.join(said)}" if said else ""

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Training images of each class, or pixels of masks; empty where a task of your own learns other things."""
        if (masks := self.train.columns.get("masks")) is not None and masks.dtype == np.uint8:
            parts = np.array_split(masks, max(len(masks) // 256, 1))
            pixels = sum(np.bincount(part.ravel(), minlength=256) for part in parts)
            return tuple(np.asarray(pixels)[: len(self.class_names)].tolist())
        labels = self.train.columns.get("labels")
        if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0:
            return ()
        counts = np.bincount(labels, minlength=len(self.class_names))
        return tuple(counts.tolist()) if len(counts) == len(self.class_names) else ()

    def imbalance(self) -> Iterator[str]:
        """``training images by class: 2.1 % (61, cat) to 41.0 % (1,204, dog)``, unless they are about equal.

        A second line is a caution that names classes without any.
        """
        unit = "pixels" if "masks" in self.train.columns else "images" if self.spec.inputs == "images" else "samples"
        counts = dict(zip(self.class_names, self.class_counts))
        if not counts or max(counts.values()) <= _ABOUT_EQUAL * min(counts.values()):
            return
        extremes = (
            f"{100 * counts[name] / sum(counts.values()):.1f} % ({counts[name]:,}, {name})"
            for name in (min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__))
        )
        yield f"training {unit} by class: {' to '.join(extremes)}"
        if empty := [name for name, count in counts.items() if not count]:
            yield f"caution: there are no training {unit} of {some(empty)}"

    def normalised(self, by: str) -> Dataset:
        """The same samples, with the facts of :meth:`DatasetSpec.normalised`."""
        return replace(self, spec=self.spec.normalised(by))

    def tested_on(self, count: int | None) -> Dataset:
        """The same with that many of the test samples, spread evenly over all; with all of them when it is None."""
        if count is None:
            return self
        return replace(self, test=self.test.at(np.arange(count) * len(self.test) // count))


def _mapped(path: str, others: Mapping[str, np.ndarray]) -> Split:
    try:
        return Split({"images": np.load(path, mmap_mode="r"), **others})
    except OSError:
        problem = f"{path} is not on {platform.node()}"
        raise ConfigError("stream", f"needs a --data-dir that all nodes share, and {problem}") from None


SPECS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec("cifar10", 10, 50_000, 10_000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), True),
        DatasetSpec("cifar100", 100, 50_000, 10_000, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), True),
        DatasetSpec("mnist", 10, 60_000, 10_000, (0.1000,) * 3, (0.2752,) * 3, False, 28, True),
        DatasetSpec("digits", 10, 1_437, 360, (0.3053,) * 3, (0.3760,) * 3, False, 8, True),
    )
}


def folder(data_dir: str | None) -> Path:
    """The folder of the data sets: the one given, ``CIFAR_RAY_DATA_DIR``, or a cache in the home folder."""
    chosen = data_dir or os.environ.get("CIFAR_RAY_DATA_DIR") or "~/.cache/cifar_ray"
    return files.absolute("data_dir", chosen)


def to_model_size(spec: DatasetSpec, images: Any) -> np.ndarray:
    """Published images as the models get them.

    8x8 images are enlarged, each pixel to 4x4; 28x28 ones get a border of 2 zeros; grey ones get three
    equal channels.

    Args:
        spec: the data set.
        images: uint8, (N, side, side, 3), or (N, side, side) when grey, with ``spec.native_size`` as side.

    Returns:
        uint8, (N, 32, 32, 3), contiguous.
    """
    array = np.asarray(images, dtype=np.uint8)
    scale = spec.image_size // spec.native_size
    array = array.repeat(scale, axis=1).repeat(scale, axis=2)
    border = (spec.image_size - array.shape[1]) // 2
    if spec.grey:
        array = np.repeat(array[..., None], spec.channels, axis=3)
    return np.ascontiguousarray(np.pad(array, ((0, 0), (border, border), (border, border), (0, 0))))


def digest(*splits: Split) -> str:
    """First 16 hex digits of the SHA-256 over all columns."""
    state = hashlib.sha256()
    for split in splits:
        for column in split.columns.values():
            state.update(np.ascontiguousarray(column).data)
    return state.hexdigest()[:16]


def as_tensor(column: np.ndarray) -> torch.Tensor:
    """A column's memory as a tensor, without a copy."""
    import torch

    with warnings.catch_warnings():
        # Memory shared between processes is read-only; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(column)
