"""Data sets: which there are, who sees which sample and when, and how images are varied."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cifar_ray.config import files
from cifar_ray.config.facts import Facts
from cifar_ray.config.option import is_folder, is_own, path_of
from cifar_ray.config.runfile import OF_DATA
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data.coco import Coco
from cifar_ray.data.datasets import SPECS, Dataset, Split, folder, unusable
from cifar_ray.data.decoded import Progress
from cifar_ray.data.folders import Folder
from cifar_ray.data.function import Function
from cifar_ray.data.masks import Masks
from cifar_ray.data.published import Published, present
from cifar_ray.data.source import Found, Source, split
from cifar_ray.data.tables import Table
from cifar_ray.data.texts import Texts
from cifar_ray.data.torchvision_images import Torchvision

__all__ = ["SPECS", "Dataset", "Facts", "Split", "facts", "folder", "keep", "load", "look", "present", "read"]

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


def look(config: TrainConfig) -> Facts:
    """The facts of a data set as far as they are known without decoding an image, or without reading one of this
    package, of which validation takes a share that is known to a few images until then.

    Raises:
        ConfigError: as :func:`find`.
    """
    if is_own(config.dataset):
        return keep(config, _source(config).look(config, find(config)))
    known = SPECS[config.dataset]
    kept = round(known.train_size * (config.val_share or 0.0))
    return keep(config, dataclasses.replace(known, train_size=known.train_size - kept, val_size=kept))


_known: dict[tuple[Any, ...], Facts] = {}


def keep(config: TrainConfig, facts: Facts) -> Facts:
    """Have these be the facts of the config's data set in this process: a worker is given them with the data."""
    _known[_key(config)] = facts
    return facts


def _key(config: TrainConfig) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in (*OF_DATA, "data_dir"))


def facts(config: TrainConfig) -> Facts:
    """The facts of a resolved config's data set, which has been read or looked at, or is looked at now.

    Raises:
        ConfigError: as :func:`find`.
    """
    return _known.get(_key(config)) or look(config)


def absolute(dataset: str) -> str:
    """``dataset`` independent of the working folder.

    Raises:
        ConfigError: when its ``~`` stands for nobody's home folder.
    """
    if not is_folder(dataset):
        return dataset
    return f"{dataset.partition(':')[0]}:{files.absolute('dataset', path_of(dataset))}"


def steps_per_epoch(config: ResolvedConfig) -> int:
    """Optimizer steps in an epoch."""
    # As order.steps_per_epoch has it, which is not imported here: it would bring torch to every command.
    return config.steps_per_epoch or facts(config).train_size // config.global_batch_size


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
            dataset = _source(config).load(config, found, progress, encoding)
        keep(config, dataset.spec)
        return dataset
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
