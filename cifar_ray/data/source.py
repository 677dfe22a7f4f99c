"""A kind of data set: what there is to read, and which samples are kept for the test and for validation."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, one_of
from cifar_ray.config.facts import Facts, Inputs
from cifar_ray.config.option import path_of
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, decoded, imagefiles, validation
from cifar_ray.data.datasets import Dataset, Split, unusable
from cifar_ray.tasks.regression import Regression

PARTS = {"train": "training", "test": "test", "val": "validation"}


@dataclass(frozen=True)
class Part:
    """Samples of one part: an array, or of each the path of a file, or a tuple that begins with that or with pixels."""

    samples: Sequence[Any] | np.ndarray
    targets: np.ndarray  # as a split has them; zeros where masks are read with their images

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def origins(self) -> list[Any]:
        """The file of each sample, or its pixels."""
        return [each[0] if isinstance(each, tuple) else each for each in self.samples]

    def at(self, rows: np.ndarray) -> Part:
        """The samples for which ``rows``, bool (N,), is true."""
        some = self.samples[rows] if isinstance(self.samples, np.ndarray) else [*compress(self.samples, rows)]
        return Part(some, self.targets[rows])


class Source:
    """A data set of one kind, as it is found before it is read.

    It has ``parts``, maybe without ``test`` and ``val``; ``classes``, a name for each number that a model gives for a
    sample; ``left_out``, what is not used, in words; the ``column`` that is learned: ``labels``, ``targets``, ``masks``
    or of a task of the user's own; the ``kind`` that the model gets; the names of ``features``.
    """

    parts: dict[str, Part]
    classes: tuple[str, ...]
    left_out: str = ""
    column: str = "labels"
    kind: Inputs = "images"
    features: tuple[str, ...] = ()

    def __init__(self, config: TrainConfig) -> None:
        """List what there is, before any is kept for the test; a ConfigError says why it cannot be learned from."""

    def read(self, sample: Any, side: int) -> np.ndarray:
        """Decode an image: uint8, (side, side, 3), or (side, side, 4) with its mask; a ConfigError names the file."""
        return imagefiles.cropped(imagefiles.read(Path(sample)), side)

    def keys(self, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        """What is drawn for ``option`` of the training samples: see :func:`validation.rows`."""
        return [f"{label} {position}".encode() for position, label in enumerate(labels.tolist())]

    def contents(self) -> Sequence[Hashable]:
        """What is equal for equal training samples: a hash of an array or a file; of a file unlike others its size."""
        origins = self.parts["train"].origins
        if not isinstance(origins[0], str):
            return [hashlib.sha256(np.ascontiguousarray(each).data).digest() for each in origins]
        sizes = [*map(os.path.getsize, origins)]
        counts = Counter(sizes)

        def content(path: str, size: int) -> Hashable:
            return hashlib.sha256(Path(path).read_bytes()).hexdigest() if counts[size] > 1 else size

        with ThreadPoolExecutor() as pool:
            return [*pool.map(content, origins, sizes)]

    def split(self, config: TrainConfig) -> Source:
        """The same with shares of each training class, or of all samples, kept for parts that are not there."""
        made = copy.copy(self)
        for name, option in (("test", "test_share"), ("val", "val_share")):
            share, is_there = getattr(config, option), name in self.parts
            if (is_there and share) or (name == "test" and not is_there and not share):
                rule, has = ("is", "some") if share else ("must be given, such as 0.2,", "none")
                without = f"for data without {PARTS[name]} samples, and {config.dataset} has {has}"
                raise ConfigError(option, f"{rule} {without}")
            if share:
                train = made.parts["train"]
                labels, names = train.targets, self.classes  # a task of the user's own may learn others than classes
                is_whole = self.column == "labels" and labels.ndim == 1 and labels.dtype.kind in "iu"
                if not is_whole or not np.array_equal(np.unique(labels), np.arange(len(names))):
                    labels, names = np.zeros(len(train), dtype=np.int64), ("",)
                kept = validation.rows(made.keys(labels, option), made.contents(), labels, names, share, option)
                made.parts = {**made.parts, "train": train.at(~kept), name: train.at(kept)}
        return made

    @property
    def is_read(self) -> bool:
        """Whether the samples are in memory already."""
        return isinstance(self.parts["train"].samples, np.ndarray)

    @property
    def splits(self) -> dict[str, Split]:
        """The parts of what has been read."""
        kind, column = self.kind, self.column
        return {name: Split({kind: np.asarray(of.samples), column: of.targets}) for name, of in self.parts.items()}

    @functools.cached_property
    def _facts(self) -> Facts:
        return arrays.facts_of("", self.splits, self.classes, self.features)

    def look(self, config: TrainConfig) -> Facts:
        """The facts, as far as they are known without decoding an image."""
        if self.is_read:
            return self._facts
        train, test, val = (len(self.parts.get(name, ())) for name in PARTS)
        known = arrays.of_images(config.dataset, config.image_size)
        if self.column == Regression.target:
            known["target_mean"], known["target_std"] = arrays.standard(self.parts["train"].targets)
        return Facts(len(self.classes), train, test, val, **known)

    def load(self, config: TrainConfig, progress: decoded.Progress, encoding: str) -> Dataset:
        """Read the data set; image files are decoded when they have not been, or have changed."""
        if not self.is_read:
            return replace(decoded.provide(config, self, progress), left_out=self.left_out)
        made = arrays.made(config.dataset, self.splits, self._facts)
        return replace(made, left_out="; ".join(filter(None, (self.left_out, made.left_out))))


class Files(Source):
    """What is below a path, ``root``; samples are drawn for validation by their paths from ``base``."""

    def __init__(self, config: TrainConfig) -> None:
        self.root = self.base = files.absolute("dataset", path_of(config.dataset))

    def keys(self, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        """The paths of files; see :class:`Source` for arrays."""
        if self.is_read:
            return super().keys(labels, option)
        return [os.fsencode(os.path.relpath(path, self.base)) for path in self.parts["train"].origins]

    def paths(self, *suffixes: str) -> dict[str, Path]:
        """The file of each part, such as train.csv, that to train with first; ``root`` where that is a file."""
        if self.root.is_file():
            return {"train": self.root}
        found = [path for part in PARTS for end in suffixes if (path := self.root / f"{part}{end}").is_file()]
        parts = {path.stem: path for path in found}
        if len(parts) < len(found) or "train" not in parts:
            names = one_of(f"train{end}" for end in suffixes)
            lacks = "has not" if self.root.exists() else "is not there"
            raise unusable(f"must be a file, or have {names} and one file of each part, and {self.root} {lacks}")
        return parts

    def check_there(self) -> None:
        """Refuse a path that is no folder."""
        if not self.root.is_dir():
            raise unusable(f"must name a folder that is there, and {self.root} is none")
