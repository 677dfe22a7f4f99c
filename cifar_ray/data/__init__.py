"""Data sets: which there are, who sees which sample and when, and how images are varied."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from cifar_ray.config import files
from cifar_ray.config.option import is_folder, is_own, path_of
from cifar_ray.config.sections import Images
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import arrays
from cifar_ray.data.coco import Coco
from cifar_ray.data.datasets import SPECS, Dataset, DatasetSpec, Split, folder, unusable
from cifar_ray.data.decoded import Progress
from cifar_ray.data.folders import Folder
from cifar_ray.data.function import Function
from cifar_ray.data.masks import Masks
from cifar_ray.data.published import Published, present
from cifar_ray.data.source import Found, Source, split
from cifar_ray.data.tables import Table
from cifar_ray.data.texts import Texts
from cifar_ray.data.torchvision_images import Torchvision

__all__ = ["SPECS", "Dataset", "DatasetSpec", "Split", "folder", "load", "look", "present", "read", "spec"]

SOURCES: dict[str, type[Source]] = {
    **dict.fromkeys(SPECS, Published),
    "torchvision:": Torchvision,
    "folder:": Folder,
    "masks:": Masks,
    "coco:": Coco,
    "text:": Texts,
    "table:": Table,
}
"""What reads a data set, by its name or what that begins with; any other is a function, MODULE:FUNCTION."""

_AT_ONCE = 8  # data sets that have been looked at and not been read yet: a sweep may have several, each in two splits


def _source(config: TrainConfig) -> Source:
    """What reads the data set of a config."""
    return SOURCES.get("".join(config.dataset.partition(":")[:2]), Function).of(config)


@functools.lru_cache(maxsize=_AT_ONCE)
def _listed(of: Source, stamp: tuple[int, ...]) -> Found:
    return of.find()


@functools.lru_cache(maxsize=_AT_ONCE)
def _split(of: Source, stamp: tuple[int, ...], dataset: str, test_share: float, val_share: float) -> Found:
    return split(of, _listed(of, stamp), dataset, test_share, val_share)


def find(config: TrainConfig) -> Found:
    """What there is to read, listed again when it has changed; it is kept until the data set is read.

    Raises:
        ConfigError: when it cannot be learned from; the sentence says why.
    """
    of = _source(config)
    with _reading(config.dataset):
        return _split(of, of.stamp(), config.dataset, config.test_share, config.val_share or 0.0)


def look(config: TrainConfig) -> Images:
    """The facts of a data set of the user's own, as far as they are known without decoding an image.

    Raises:
        ConfigError: as :func:`find`.
    """
    return _source(config).look(config, find(config))


def absolute(dataset: str) -> str:
    """``dataset`` independent of the working folder.

    Raises:
        ConfigError: when its ``~`` stands for nobody's home folder.
    """
    if not is_folder(dataset):
        return dataset
    return f"{dataset.partition(':')[0]}:{files.absolute('dataset', path_of(dataset))}"


def spec(config: TrainConfig, images: Images | None = None) -> DatasetSpec:
    """The facts of a resolved config's data set; of one of the user's own, ``images`` once it has been read.

    Until then, they are what a first look has found. How many images validation takes from one of this package is known
    to a few images until it has been read.
    """
    if is_own(config.dataset):
        return arrays.spec(config.dataset, images or config.images)
    spec = SPECS[config.dataset]
    kept = round(spec.train_size * (config.val_share or 0.0))
    return dataclasses.replace(spec, train_size=spec.train_size - kept, val_size=kept)


def steps_per_epoch(config: ResolvedConfig, images: Images | None = None) -> int:
    """Optimizer steps in an epoch; arguments as of :func:`spec`."""
    # As order.steps_per_epoch has it, which is not imported here: it would bring torch to every command.
    return config.steps_per_epoch or spec(config, images).train_size // config.global_batch_size


def read(config: TrainConfig, progress: Progress = lambda done, total: None, encoding: str = "") -> Dataset:
    """Read the data set of a config, downloading it first where it can be and is not there.

    Several processes may call this at once with one folder: one downloads, the others wait.

    Args:
        config: names it.
        progress: called while images are decoded, or texts become tokens.
        encoding: of a data set that has one (:class:`Dataset`), that of a run; by default it is learned.

    Raises:
        ConfigError: when it cannot be read or downloaded; the sentence names the file and what to do.
    """
    try:
        found = find(config)
        with _reading(config.dataset):
            return _source(config).load(config, found, progress, encoding)
    finally:  # what was found takes as much memory as what is read
        _listed.cache_clear()
        _split.cache_clear()


def load(name: str, data_dir: str | None = None) -> Dataset:
    """Read a data set by its name, as :func:`read`."""
    return read(TrainConfig(dataset=name, data_dir=data_dir))


@contextmanager
def _reading(dataset: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = error.filename or dataset
        raise unusable(f"must be files that can be read, and {name} cannot be ({error.strerror})") from None
