"""A kind of data set: what there is to read, and which samples are kept for the test and for validation."""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from cifar_ray.data.decoded import Progress
from cifar_ray.tasks.regression import Regression

PARTS = {"train": "training", "test": "test", "val": "validation"}


@dataclass(frozen=True)
class Part:
    """Samples of one part of a data set before they are read.

    Attributes:
        samples: what each is read from, such as a path; an array has the samples themselves, as a split has them.
        targets: what is learned of each, as a split has it; zeros where masks are read with their images.
        reader: what a source needs beside a sample to read it.
    """

    samples: Sequence[Any] | np.ndarray
    targets: np.ndarray
    reader: Any = None

    def __len__(self) -> int:
        return len(self.targets)

    def at(self, rows: np.ndarray) -> Part:
        """The samples for which ``rows``, bool (N,), is true."""
        samples = self.samples
        chosen = samples[rows] if isinstance(samples, np.ndarray) else [*itertools.compress(samples, rows)]
        return replace(self, samples=chosen, targets=self.targets[rows])


@dataclass(frozen=True)
class Found:
    """What a source has found.

    Attributes:
        classes: a name for each number that a model gives for a sample.
        parts: ``train``, and ``test`` and ``val`` where they are apart.
        column: what is learned: ``labels``, ``targets``, ``masks``, or as a task of the user's own has it.
        kind: what the model is given.
        left_out: what else is there and is not used, in words.
        features: their names, where they have any.
    """

    classes: tuple[str, ...]
    parts: Mapping[str, Part]
    column: str = "labels"
    kind: Inputs = "images"
    left_out: str = ""
    features: tuple[str, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether the samples are in memory already."""
        return isinstance(self.parts["train"].samples, np.ndarray)

    @property
    def splits(self) -> dict[str, Split]:
        """The parts of what has been read."""
        return {
            name: Split({self.kind: np.asarray(part.samples), self.column: part.targets})
            for name, part in self.parts.items()
        }

    @functools.cached_property
    def facts(self) -> Facts:
        """The facts of what has been read."""
        return arrays.facts_of("", self.splits, self.classes, self.features)


class Source(abc.ABC):
    """One kind of data set. A frozen dataclass of what a config says of it: equal ones find the same."""

    @classmethod
    @abc.abstractmethod
    def of(cls, config: TrainConfig) -> Source:
        """The source that a config names."""

    @abc.abstractmethod
    def find(self) -> Found:
        """List what there is; nothing is kept for the test or for validation yet.

        Raises:
            ConfigError: when it cannot be learned from; the sentence says why.
        """

    def stamp(self) -> tuple[int, ...]:
        """What changes when there is something else to find."""
        return ()

    def files(self, part: Part, row: int) -> tuple[str, ...]:
        """The image files that a sample is read from, the image itself first."""
        return (part.samples[row],)

    def read(self, part: Part, row: int, side: int) -> np.ndarray:
        """Decode an image: uint8, (side, side, 3), or (side, side, 4) with its mask.

        Raises:
            ConfigError: naming the file when it cannot be read.
        """
        return imagefiles.square(Path(part.samples[row]), side)

    def mark(self, part: Part, row: int) -> bytes:
        """What tells an image and what is learned of it from others."""
        return b"".join(map(decoded.mark, self.files(part, row))) + part.targets[row].tobytes()

    def keys(self, part: Part, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        """What is drawn for ``option``: see :func:`validation.rows`."""
        return [f"{label} {position}".encode() for position, label in enumerate(labels.tolist())]

    def contents(self, part: Part) -> Sequence[Hashable]:
        """What is equal for equal samples."""
        if isinstance(part.samples, np.ndarray):
            return [sha256(row) for row in part.samples]
        return contents([self.files(part, row)[0] for row in range(len(part))])

    def check(self, found: Found) -> None:  # noqa: B027
        """Refuse parts that cannot be learned from, once samples are kept for the test and for validation."""

    def look(self, config: TrainConfig, found: Found) -> Facts:
        """The facts, as far as they are known without decoding an image."""
        if found.is_read:
            return found.facts
        train, test, val = (len(found.parts.get(name, ())) for name in PARTS)
        facts = Facts(len(found.classes), train, test, val, **arrays.of_images(config.dataset, config.image_size))
        if found.column != Regression.target:
            return facts
        mean, std = arrays.standard(found.parts["train"].targets)
        return replace(facts, target_mean=mean, target_std=std)

    def load(self, config: TrainConfig, found: Found, progress: Progress, encoding: str) -> Dataset:
        """Read the data set; image files are decoded when they have not been, or have changed."""
        if found.is_read:
            made = arrays.made(config.dataset, found.splits, found.facts)
        else:
            made = decoded.provide(config, self, found, progress)
        return replace(made, left_out="; ".join(filter(None, (found.left_out, made.left_out))))


@dataclass(frozen=True)
class Files(Source):
    """What is below a path. Of a folder of images, a part's ``reader`` is the folder of that part."""

    root: Path

    @classmethod
    def of(cls, config: TrainConfig) -> Files:
        return cls(files.absolute("dataset", path_of(config.dataset)))

    def stamp(self) -> tuple[int, ...]:
        """The times at which the files beside each other, and the folders up to those of classes, have changed."""
        below = ("*", "*/*/", "annotations/*")
        paths = [self.root, *itertools.chain.from_iterable(map(self.root.glob, below))]
        return tuple(path.stat().st_ctime_ns for path in paths if path.exists())

    def keys(self, part: Part, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        paths = (self.files(part, row)[0] for row in range(len(part)))
        return [os.fsencode(os.path.relpath(path, part.reader)) for path in paths]

    def parts(self, *suffixes: str) -> dict[str, Path]:
        """The file of each part, such as train.csv; that to train with, where ``root`` is a file.

        Raises:
            ConfigError: when there is neither, or there are two files of one part, or none to train with.
        """
        if self.root.is_file():
            return {"train": self.root}
        self.check_there(f"a folder, or a {one_of(suffixes)} file,")
        found: dict[str, Path] = {}
        for part in PARTS:
            paths = [path for suffix in suffixes if (path := self.root / f"{part}{suffix}").is_file()]
            if len(paths) > 1:
                both = f"{paths[0].name} and {paths[1].name}"
                raise unusable(f"must have one file of each part, and {self.root} has {both}")
            if paths:
                found[part] = paths[0]
        if "train" not in found:
            names = one_of("train" + suffix for suffix in suffixes)
            raise unusable(f"must have {names}, and {self.root} has none")
        return found

    def check_there(self, kind: str = "a folder") -> None:
        """Refuse a path that is no folder; ``kind`` says what it may be."""
        if not self.root.is_dir():
            has = f"{self.root} is none" if self.root.exists() else f"there is no {self.root}"
            raise unusable(f"must name {kind} that is there, and {has}")


def split(source: Source, found: Found, dataset: str, test_share: float, val_share: float) -> Found:
    """Keep a share of the training samples for the test and for validation: the same ones in every run.

    It is a share of each class, or of all samples where there are no classes; equal samples are on one side. A refusal
    names ``dataset``.

    Raises:
        ConfigError: when there is no test part and no share for it, when there is a part and a share, or when a share
            leaves nothing of a class.
    """
    parts = dict(found.parts)
    for name, option, share in (("test", "test_share", test_share), ("val", "val_share", val_share)):
        if name in parts and share:
            raise ConfigError(option, f"is for data without {PARTS[name]} samples, and {dataset} has some")
        if name == "test" and name not in parts and not share:
            raise ConfigError(option, f"must be given, such as 0.2, for {dataset}, which has no test samples")
        if share:
            train = parts["train"]
            labels, names = train.targets, found.classes
            if found.column != "labels" or not _are_classes(labels, names):
                labels, names = np.zeros(len(train), dtype=np.int64), ("",)
            keys = source.keys(train, labels, option)
            kept = validation.rows(keys, source.contents(train), labels, names, share, option)
            parts |= {"train": train.at(~kept), name: train.at(kept)}
    whole = replace(found, parts=parts)
    source.check(whole)
    return whole


def contents(paths: Sequence[str]) -> list[tuple[int, str]]:
    """What is equal for files of equal bytes; those of a size that no other has are not read."""
    sizes = [Path(path).stat().st_size for path in paths]
    counts = Counter(sizes)
    shared = [path for path, size in zip(paths, sizes) if counts[size] > 1]
    with ThreadPoolExecutor() as pool:
        digests = dict(zip(shared, pool.map(lambda path: files.digest(Path(path), "sha256"), shared)))
    return [(size, digests.get(path, "")) for path, size in zip(paths, sizes)]


def sha256(row: Any) -> bytes:
    """What is equal for arrays of equal bytes."""
    return hashlib.sha256(np.ascontiguousarray(row).data).digest()


def _are_classes(labels: np.ndarray, names: Sequence[str]) -> bool:
    """Whether a column has the numbers of these classes: a task of the user's own may learn other labels."""
    is_whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    return is_whole and np.array_equal(np.unique(labels), np.arange(len(names)))
