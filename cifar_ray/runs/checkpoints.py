"""A run's checkpoints on a disk, where training and loading need them: a local folder's own, copies of a bucket's.

Beside them, or in the sweep's folder, are the weights that the run starts from, if they were given.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cifar_ray import storage
from cifar_ray.config.errors import ConfigError
from cifar_ray.runs.folder import CHECKPOINTS
from cifar_ray.storage import Folder, StorageError
from cifar_ray.training import checkpoint, predictor
from cifar_ray.training.checkpoint import STATE, WEIGHTS
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import MANIFEST, step_of
from cifar_ray.training.predictor import Predictor


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

        What a killed process has left unfinished is removed, too. Later checkpoints stay: they belong to another
        driver that has taken over.

        Raises:
            StorageError: when it cannot be uploaded, even after several tries.
        """
        if self.bucket is None:
            return
        target = self.bucket.below(saved.name)

        def upload() -> None:
            target.delete(MANIFEST)  # of a damaged one of the same step
            for name in (WEIGHTS, STATE, MANIFEST):  # the manifest last: with it, the checkpoint is complete
                target.upload(saved / name)

        try:
            storage.persistently(upload)
        except OSError as error:
            raise StorageError(f"storage: {target.address} cannot be written: {storage.reason(error)}") from None
        kept = {path.name for path in checkpoint.every(self.path)}
        with suppress(OSError):  # the next one may succeed
            for name in self.bucket.names():
                if name not in kept and 0 <= step_of(name) <= step_of(saved.name):
                    self.bucket.below(name).delete(MANIFEST)  # first, so that no part of it looks like a whole
                    self.bucket.below(name).remove()


@contextmanager
def writing(folder: Folder) -> Iterator[Writer]:
    """Context manager: where rank 0 finds and writes the checkpoints of a run.

    Raises:
        ConfigError: when this node does not see the folder.
        StorageError: when the bucket cannot be read.
    """
    path, bucket = folder.disk / CHECKPOINTS, folder.below(CHECKPOINTS)
    if not folder.local:
        with _copied(bucket, path):
            yield Writer(path, bucket)
        shutil.rmtree(path, ignore_errors=True)
        return
    if not folder.exists():
        rule = "must be a folder that all nodes share"
        raise ConfigError("storage", f"{rule}; {socket.gethostname()} lacks {folder.address}")
    yield Writer(path)


@contextmanager
def reading(folder: Folder) -> Iterator[Path]:
    """Context manager: the folder with the checkpoints of a run, to read them.

    Raises:
        ConfigError: when the bucket cannot be read.
    """
    if folder.local:
        yield folder.disk / CHECKPOINTS
        return
    with storage.scratch() as path:
        try:
            with _copied(folder.below(CHECKPOINTS), path / CHECKPOINTS):
                yield path / CHECKPOINTS
        except StorageError as error:
            raise ConfigError("", str(error)) from None


@contextmanager
def _copied(bucket: Folder, path: Path) -> Iterator[None]:
    """Context manager: ``path`` has copies of the complete checkpoints in a bucket, whose address errors name."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        for name in bucket.names():
            for file in (MANIFEST, WEIGHTS, STATE):
                with suppress(FileNotFoundError):
                    bucket.below(name).download(file, path / name)
            if not (path / name / MANIFEST).exists():  # it is incomplete
                shutil.rmtree(path / name)
    except OSError as error:
        raise StorageError(f"storage: {bucket.address} cannot be read: {storage.reason(error)}") from None
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(path), bucket.address)) from None


def load(folder: Folder, name: str) -> tuple[Predictor, str]:
    """The model of a checkpoint, or of ``best``, the one with the best validation figure, and its weights' SHA-256.

    Raises:
        CheckpointError: when the checkpoint cannot be used, or none is the best.
        ConfigError: when the bucket cannot be read.
    """
    with reading(folder) as here:
        path = checkpoint.chosen(here) if name == "best" else here / name
        snapshot = checkpoint.load(path)
        return predictor.of(path, snapshot), snapshot.weights_sha256


def keep_initial(folder: Folder, digest: str, weights: bytes) -> None:
    """Keep the weights of that SHA-256, which runs start from, in the folder of a run, or of a sweep for its runs."""
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
