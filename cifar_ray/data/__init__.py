"""Data sets: which there are, who sees which sample and when, and how images are varied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cifar_ray.config import files
from cifar_ray.config.facts import Facts
from cifar_ray.config.option import SOURCES, TEXT, is_folder, is_own, path_of, prefix_of
from cifar_ray.config.runfile import OF_DATA
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import tokens
from cifar_ray.data.datasets import SPECS, Dataset, Split, folder, unusable
from cifar_ray.data.decoded import Progress
from cifar_ray.data.published import present
from cifar_ray.data.source import Source

__all__ = ["SOURCES", "SPECS", "Dataset", "Facts", "Split", "facts", "folder", "load", "look", "present", "read"]

_found: dict[object, Source] = {}  # and not been read yet: a sweep may have several data sets, each in two splits

_known: dict[tuple[Any, ...], Facts] = {}


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(
            f"must be files that can be read, and {error.filename or 'some'} cannot be ({error.strerror})"
        ) from None


@_reading()
def find(config: TrainConfig) -> Source:
    """What there is to read, kept until it is read or a file has changed; a ConfigError where it is of no use."""
    dataset, times = absolute(config.dataset), tuple[int, ...]()
    if is_folder(dataset):
        root = Path(path_of(dataset))
        paths = [root, *(path for some in ("*", "*/*/", "annotations/*") for path in root.glob(some))]
        times = tuple(path.stat().st_ctime_ns for path in paths if path.exists())
    asked = (repr(getattr(config, name)) for name in OF_DATA if name not in ("test_share", "val_share"))
    key = (dataset, times, folder(config.data_dir), *asked)
    kind = "published" if dataset in SPECS else SOURCES.get(prefix_of(dataset), "function")
    make = import_module(f"cifar_ray.data.{kind}").SOURCE if isinstance(kind, str) else kind
    if len(_found) > 8:  # each may take as much memory as the data set
        _found.clear()
    whole = _found.get(key) or _found.setdefault(key, make(config))
    shares = (key, config.test_share, config.val_share or 0.0)
    return _found.get(shares) or _found.setdefault(shares, whole.split(config))


def look(config: TrainConfig) -> Facts:
    """The facts, as far as known without decoding; what validation takes of this package's sets is nearly so."""
    if is_own(config.dataset):
        return keep(config, find(config).look(config))
    known = SPECS[config.dataset]
    kept = round(known.train_size * (config.val_share or 0.0))
    return keep(config, replace(known, train_size=known.train_size - kept, val_size=kept))


def keep(config: TrainConfig, facts: Facts) -> Facts:
    """Have these be the facts of the config's data set in this process: a worker is given them with the data."""
    _known[_key(config)] = facts
    return facts


def _key(config: TrainConfig) -> tuple[Any, ...]:
    return tuple(repr(getattr(config, name)) for name in (*OF_DATA, "data_dir"))


def facts(config: TrainConfig) -> Facts:
    """The facts of a resolved config's data set, which has been read or looked at, or is looked at now."""
    return _known.get(_key(config)) or look(config)


def complete(config: TrainConfig) -> dict[str, Any]:
    """The options of texts: those that are given, checked, and the defaults of the others; empty for other data."""
    return tokens.complete(config) if prefix_of(config.dataset) == TEXT else {}


def absolute(dataset: str) -> str:
    """``dataset`` independent of the working folder; a ConfigError where its ``~`` is nobody's home folder."""
    return f"{prefix_of(dataset)}{files.absolute('dataset', path_of(dataset))}" if is_folder(dataset) else dataset


def steps_per_epoch(config: ResolvedConfig) -> int:
    """Optimizer steps in an epoch, as by order.steps_per_epoch, which would bring torch to every command."""
    return config.steps_per_epoch or facts(config).train_size // config.global_batch_size


@_reading()
def read(config: TrainConfig, progress: Progress = lambda done, total: None, encoding: str = "") -> Dataset:
    """Read the data set of a config, downloaded first where it is not there, by one of several processes.

    ``progress`` is called while images are decoded or texts become tokens, these by ``encoding`` (:class:`Dataset`),
    or one that is learned. A ConfigError names a file that cannot be read, or says why nothing could be downloaded.
    """
    try:
        dataset = find(config).load(config, progress, encoding)
        keep(config, dataset.spec)
        return dataset
    finally:  # what was found takes as much memory as what is read
        _found.clear()


def load(name: str, data_dir: str | None = None) -> Dataset:
    """Read a data set by its name, as :func:`read`."""
    return read(TrainConfig(dataset=name, data_dir=data_dir))
