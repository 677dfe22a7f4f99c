"""Data sets in memory, and those that are known by name.

A sample is a row of named columns: one of :data:`INPUTS`, which the model is given, and one that it learns.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.facts import Facts, Inputs

if TYPE_CHECKING:
    import torch

CONSTANTS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation per channel by which pixels may be normalised in place of a data set's own."""

INPUTS: tuple[Inputs, ...] = get_args(Inputs)
"""What a model may be given of a sample, by its column: ``images``, uint8 (N, side, side, 3), which it takes as float32
(B, C, H, W); ``features``, float32 or float64 (N, length), which it takes standardised, float32 (B, length);
``tokens``, int32 (N, length) below the vocabulary, with 0 as padding behind a shorter text, which it takes as int64."""

BORDERED_SIDE = 32
"""Side of an image in MNIST's format once it has its border."""


def unusable(problem: str) -> ConfigError:
    """The error about a data set that cannot be learned from: what it must have, and what it has."""
    return ConfigError("dataset", problem)


def normalised(facts: Facts, by: str) -> Facts:
    """The same, where pixels are normalised as a config's ``normalise`` says."""
    if by not in CONSTANTS:
        return facts
    mean, std = CONSTANTS[by]
    return replace(facts, mean=mean, std=std)


@dataclass(frozen=True)
class Split:
    """Training or test samples: named ``columns``, one of :data:`INPUTS` and what a task learns of it.

    Each is an array whose first axis counts the samples. ``images`` may be read-only, and may stay on disk; ``labels``
    are int64 (N,).
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
        """That column."""
        return self.columns[self.kind]

    def at(self, rows: Any) -> Split:
        """Some of the samples, as NumPy chooses rows."""
        return Split({name: column[rows] for name, column in self.columns.items()})

    @property
    def file(self) -> str | None:
        """Where all its images are, if they stay on disk: other processes are told this path alone."""
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
        name: what ``--dataset`` calls it.
        spec: its facts.
        left_out: what is not used, or otherwise than its name says, in words.
        encoding: of texts, their tokenizer as JSON; empty of others.
    """

    name: str
    spec: Facts
    train: Split
    test: Split
    left_out: str = ""
    val: Split | None = None
    encoding: str = ""

    def normalised(self, by: str) -> Dataset:
        """The same samples, with the facts of :func:`normalised`."""
        return replace(self, spec=normalised(self.spec, by))

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


_GREY: dict[str, Any] = {"flip": False, "grey": True}

SPECS: dict[str, Facts] = {
    "cifar10": Facts(10, 50_000, 10_000, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": Facts(100, 50_000, 10_000, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    "mnist": Facts(10, 60_000, 10_000, mean=(0.1000,) * 3, std=(0.2752,) * 3, native_size=28, **_GREY),
    "digits": Facts(10, 1_437, 360, mean=(0.3053,) * 3, std=(0.3760,) * 3, native_size=8, **_GREY),
}
"""The facts of this package's data sets that hold before they are read."""


def folder(data_dir: str | None) -> Path:
    """The folder of the data sets: the one given, ``CIFAR_RAY_DATA_DIR``, or a cache in the home folder."""
    chosen = data_dir or os.environ.get("CIFAR_RAY_DATA_DIR") or "~/.cache/cifar_ray"
    return files.absolute("data_dir", chosen)


def to_model_size(spec: Facts, images: Any) -> np.ndarray:
    """Published images, (N, side, side, 3), or (N, side, side) when grey, as the models get them.

    8x8 images are enlarged, each pixel to 4x4; 28x28 ones get a border of 2 zeros; grey ones three equal channels.

    Returns:
        uint8, (N, 32, 32, 3), contiguous.
    """
    array = np.asarray(images, dtype=np.uint8)
    scale = spec.image_size // spec.native_size
    array = array.repeat(scale, axis=1).repeat(scale, axis=2)
    border = (spec.image_size - array.shape[1]) // 2
    if spec.grey:
        array = np.repeat(array[..., None], 3, axis=3)
    return np.ascontiguousarray(np.pad(array, ((0, 0), (border, border), (border, border), (0, 0))))


def digest(*splits: Split) -> str:
    """First 16 hex digits of the SHA-256 over all columns."""
    state = hashlib.sha256()
    for column in (column for split in splits for column in split.columns.values()):
        state.update(np.ascontiguousarray(column).data)
    return state.hexdigest()[:16]


def as_tensor(column: np.ndarray) -> torch.Tensor:
    """A column's memory as a tensor, without a copy."""
    import torch

    with warnings.catch_warnings():
        # Memory shared between processes is read-only; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(column)
