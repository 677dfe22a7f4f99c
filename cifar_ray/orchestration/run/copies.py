"""Checkpoints of an object store while somebody works on them: training and loading want files on a disk."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.storage import Folder, LocalFolder, ObjectFolder, StorageError, persistently, reason
from cifar_ray.training import checkpoint
from cifar_ray.training.checkpoint import MANIFEST, STATE, WEIGHTS
from cifar_ray.training.errors import CheckpointError

CHECKPOINTS = "checkpoints"
"""Name of the folder of a run's checkpoints."""


@dataclass(frozen=True)
class Copy:
    """Where the worker that writes checkpoints keeps them.

    Attributes:
        path: a folder on a disk of this node.
        store: the run's checkpoints in the object store; None when ``path`` is where they belong.
    """

    path: Path
    store: ObjectFolder | None = None

    def keep(self, saved: Path) -> None:
        """Bring a checkpoint that was just written to where it belongs, complete or not at all.

        What was removed here is removed there.

        Raises:
            StorageError: when the store does not take it, though it was tried again.
        """
        if self.store is None:
            return
        target = self.store.below(saved.name)
        try:
            persistently(lambda: self._upload(saved, target))
        except OSError as error:
            raise StorageError(f"storage: {target.address} cannot be written: {reason(error)}") from None
        with contextlib.suppress(OSError):  # the next one may succeed
            self._prune(self.store, checkpoint.step_of(saved.name))

    def _upload(self, saved: Path, target: ObjectFolder) -> None:
        target.delete(MANIFEST)  # of a damaged one of the same step
        for name in (WEIGHTS, STATE, MANIFEST):
            target.upload(saved / name)

    def _prune(self, store: ObjectFolder, newest: int) -> None:
        """Remove what is not here, also of a process that was killed while it wrote.

        Later ones than that of step ``newest`` stay: they are unfinished, or another driver's that has taken over.
        """
        kept = {path.name for path in checkpoint.every(self.path)}
        for name in store.names():
            if name not in kept and 0 <= checkpoint.step_of(name) <= newest:
                _remove(store.below(name))


def _remove(target: ObjectFolder) -> None:
    target.delete(MANIFEST)  # first, so that no part of it looks like a whole
    target.remove()


@contextmanager
def training(folder: Folder, record: TrainConfig) -> Iterator[Copy]:
    """Where rank 0 finds and keeps the checkpoints of the run in ``folder``, whose config is ``record``.

    Raises:
        CheckpointError: when there are checkpoints and none can be used.
        ConfigError: when this node does not see the folder.
        StorageError: when the object store cannot be read.
    """
    if isinstance(folder, LocalFolder):
        if not folder.path.is_dir():
            host = socket.gethostname()
            raise ConfigError("storage", f"must be a folder that all nodes share; {host} lacks {folder.path}")
        yield Copy(folder.path / CHECKPOINTS)
        return
    assert isinstance(folder, ObjectFolder)
    store, path = folder.below(CHECKPOINTS), folder.here / CHECKPOINTS
    try:
        fetch(store, path, record=record)
    except OSError as error:
        raise StorageError(f"storage: {store.address} cannot be read: {reason(error)}") from None
    with _named(path, store.address):
        yield Copy(path, store)
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def reading(folder: Folder, wanted: str = "last", record: TrainConfig | None = None) -> Iterator[Path]:
    """The checkpoints of the run in ``folder``, to be looked at.

    Of an object store's, every manifest is there, and all of one checkpoint: the newest usable, with what is newer.

    Args:
        folder: the run's.
        wanted: ``last``; ``best`` for the one with the highest test accuracy, too; or a checkpoint's name.
        record: as for :func:`cifar_ray.training.checkpoint.load`.

    Raises:
        ConfigError: when the object store cannot be read.
    """
    if isinstance(folder, LocalFolder):
        yield folder.path / CHECKPOINTS
        return
    assert isinstance(folder, ObjectFolder)
    store = folder.below(CHECKPOINTS)
    with files.scratch() as temporary:
        path = temporary / CHECKPOINTS
        try:
            fetch(store, path, wanted, record)
        except OSError as error:
            raise ConfigError("", f"the checkpoints in {store.address} cannot be read: {reason(error)}") from None
        with _named(path, store.address):
            yield path


@contextmanager
def file(folder: Folder, name: str) -> Iterator[Path]:
    """A file of ``folder``, to be read; it need not be there.

    Raises:
        ConfigError: when the object store cannot be read.
    """
    if isinstance(folder, LocalFolder):
        yield folder.path / name
        return
    assert isinstance(folder, ObjectFolder)
    with files.scratch() as temporary:
        try:
            folder.download(name, temporary)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError("", f"{folder.address}/{name} cannot be read: {reason(error)}") from None
        yield temporary / name


def fetch(store: ObjectFolder, path: Path, wanted: str = "last", record: TrainConfig | None = None) -> None:
    """Make ``path`` a copy of a store's checkpoints, as far as :func:`reading` says.

    Raises:
        OSError: when the store cannot be read.
    """
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    complete = set()
    for name in store.names():
        try:
            store.below(name).download(MANIFEST, path / name)
            complete.add(name)
        except FileNotFoundError:
            shutil.rmtree(path / name)
    if wanted in complete:
        _complete(store, path / wanted)
        return
    for found in reversed(checkpoint.every(path)):
        _complete(store, found)
        try:
            checkpoint.load(found, record)
            break
        except CheckpointError:
            continue  # whoever asks for the newest will find that out again, and say it
    best = checkpoint.best(path) if wanted == "best" else None
    if best is not None and not (best / WEIGHTS).exists():
        _complete(store, best)


def _complete(store: ObjectFolder, found: Path) -> None:
    for name in (WEIGHTS, STATE):
        with contextlib.suppress(FileNotFoundError):
            store.below(found.name).download(name, found)


@contextmanager
def _named(path: Path, address: str) -> Iterator[None]:
    """Within it, what is said of checkpoints names the store, not the copy."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(path), address)) from None


def forget(folder: Folder) -> None:
    """Remove what of an object store's folder is on a disk of this machine, but for the lock."""
    if isinstance(folder, ObjectFolder) and folder.here.is_dir():
        for path in folder.here.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def notes(folder: Folder, name: str) -> Path:
    """A folder for what Ray notes of an attempt; nobody reads it later, so it need not be in an object store."""
    return (folder.here if isinstance(folder, ObjectFolder) else Path(folder.address)) / name
