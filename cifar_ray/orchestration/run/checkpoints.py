"""A run's checkpoints on a disk, where training and loading need them: a local folder's own, copies of a bucket's.

Beside them, or in the sweep's folder, are the weights that the run starts from, if they were given.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cifar_ray import storage
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.run.run_names import CHECKPOINTS as CHECKPOINTS
from cifar_ray.storage import Folder, StorageError
from cifar_ray.training import checkpoint
from cifar_ray.training.checkpoint import STATE, WEIGHTS
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import MANIFEST, step_of


@dataclass(frozen=True)
class Writer:
    """Where the worker of rank 0 writes checkpoints.

    Attributes:
        path: a folder on a disk of this node.
        bucket: the run's checkpoints in a bucket; None when ``path`` is where they belong.
    """

    path: Path
    bucket: Folder | None = None

    def keep(self, saved: Path) -> None:
        """Upload a checkpoint that was just written, complete or not at all, and remove there what was removed here.

        Raises:
            StorageError: when it cannot be uploaded, even after several tries.
        """
        if self.bucket is None:
            return
        target = self.bucket.below(saved.name)
        try:
            storage.persistently(lambda: _upload(saved, target))
        except OSError as error:
            raise StorageError(f"storage: {target.address} cannot be written: {storage.reason(error)}") from None
        with contextlib.suppress(OSError):  # the next one may succeed
            self._prune(self.bucket, step_of(saved.name))

    def _prune(self, bucket: Folder, newest: int) -> None:
        """Remove what is not on the disk, including what a killed process has left unfinished.

        Those later than step ``newest`` stay: they are unfinished, or belong to another driver that has taken over.
        """
        kept = {path.name for path in checkpoint.every(self.path)}
        for name in bucket.names():
            if name not in kept and 0 <= step_of(name) <= newest:
                bucket.below(name).delete(MANIFEST)  # first, so that no part of it looks like a whole
                bucket.below(name).remove()


def _upload(saved: Path, target: Folder) -> None:
    target.delete(MANIFEST)  # of a damaged one of the same step
    for name in (WEIGHTS, STATE, MANIFEST):  # the manifest last: with it, the checkpoint is complete
        target.upload(saved / name)


@contextmanager
def writing(folder: Folder, config: ResolvedConfig, decided: Decided | None = None) -> Iterator[Writer]:
    """Context manager: where rank 0 finds and writes the checkpoints of a run.

    Raises:
        CheckpointError: when there are checkpoints and none can be used.
        ConfigError: when this node does not see the folder.
        StorageError: when the bucket cannot be read.
    """
    path = folder.disk / CHECKPOINTS
    if folder.local:
        if not folder.exists():
            host = socket.gethostname()
            raise ConfigError("storage", f"must be a folder that all nodes share; {host} lacks {folder.address}")
        yield Writer(path)
        return
    bucket = folder.below(CHECKPOINTS)
    try:
        _fetch(bucket, path, "best", config, decided)  # it is tested at the end of the run
    except OSError as error:
        raise StorageError(f"storage: {bucket.address} cannot be read: {storage.reason(error)}") from None
    with _naming(bucket, path):
        yield Writer(path, bucket)
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def reading(
    folder: Folder, wanted: str = "last", config: ResolvedConfig | None = None, decided: Decided | None = None
) -> Iterator[Path]:
    """Context manager: the folder with the checkpoints of a run, to read them.

    Of a bucket's, it has every manifest and all of one checkpoint: the newest usable, and those newer than it.

    Args:
        folder: the run's.
        wanted: ``last``; ``best`` for the one with the best score, too, if there is one; or a checkpoint's name.
        config: what a usable checkpoint was made with, as for :func:`cifar_ray.training.checkpoint.load`.
        decided: likewise.

    Raises:
        ConfigError: when the bucket cannot be read.
    """
    if folder.local:
        yield folder.disk / CHECKPOINTS
        return
    bucket = folder.below(CHECKPOINTS)
    with storage.scratch() as path:
        try:
            _fetch(bucket, path / CHECKPOINTS, wanted, config, decided)
        except OSError as error:
            reason = storage.reason(error)
            raise ConfigError("", f"the checkpoints in {bucket.address} cannot be read: {reason}") from None
        with _naming(bucket, path / CHECKPOINTS):
            yield path / CHECKPOINTS


def _fetch(bucket: Folder, path: Path, wanted: str, config: ResolvedConfig | None, decided: Decided | None) -> None:
    """Make ``path`` the copy that :func:`reading` describes; an OSError says that the bucket cannot be read."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for name in bucket.names():
        try:
            bucket.below(name).download(MANIFEST, path / name)
        except FileNotFoundError:  # it is incomplete
            shutil.rmtree(path / name)
    if (path / wanted).exists():
        _complete(bucket, path / wanted)
        return
    for copy in reversed(checkpoint.every(path)):
        _complete(bucket, copy)
        try:
            checkpoint.load(copy, config, decided)
            break
        except CheckpointError:
            continue  # who asks for the newest finds that out again, and says it
    best = checkpoint.best(path) if wanted == "best" else None
    if best is not None and not (best / WEIGHTS).exists():
        _complete(bucket, best)


def _complete(bucket: Folder, copy: Path) -> None:
    for name in (WEIGHTS, STATE):
        with contextlib.suppress(FileNotFoundError):
            bucket.below(copy.name).download(name, copy)


@contextmanager
def _naming(bucket: Folder, path: Path) -> Iterator[None]:
    """Context manager: errors name a checkpoint's address in the bucket, not its copy."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(path), bucket.address)) from None


def keep_initial(folder: Folder, digest: str, weights: bytes) -> None:
    """Keep the weights of that SHA-256, which runs start from, in the folder of a run, or of a sweep for all its runs.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    with storage.refusing(folder), storage.scratch() as here:
        (here / _initial(digest)).write_bytes(weights)
        folder.upload(here / _initial(digest))


def initial(folder: Folder, digest: str) -> bytes:
    """What :func:`keep_initial` has kept for a run; one that has a checkpoint does without."""
    for place in (folder, folder.above):
        with place.on_disk(_initial(digest)) as path:
            if path.is_file():
                return path.read_bytes()
    raise FileNotFoundError(f"{folder.address} has no {_initial(digest)}, which the run starts from")


def _initial(digest: str) -> str:
    return f"initial-{digest[:16]}.safetensors"


def remove_copies(folder: Folder) -> None:
    """Remove what this machine's disk has of a bucket's folder, except for the lock."""
    if not folder.local and folder.disk.is_dir():
        for path in folder.disk.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
