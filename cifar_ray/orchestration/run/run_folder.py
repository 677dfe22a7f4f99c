"""A run's folder: what it is, and where its checkpoints are."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cifar_ray import storage
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.run import checkpoints, run_names
from cifar_ray.storage import Folder, Lock
from cifar_ray.tracking import uri
from cifar_ray.training import checkpoint, predictor
from cifar_ray.training.predictor import Predictor

_DESCRIPTION = "run.json"


@dataclass(frozen=True)
class RunFolder:
    """One run's folder below ``--storage``; ``key`` is the run's identity in the tracking store, chosen with it."""

    folder: Folder
    key: str

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def address(self) -> str:
        return self.folder.address

    def checkpoint(self, name: str) -> str:
        return self.folder.below(checkpoints.CHECKPOINTS).below(name).address

    def checkpoints(self, config: ResolvedConfig, decided: Decided | None) -> AbstractContextManager[Path]:
        """Context manager: the folder of its checkpoints to read, complete the newest that ``config`` can continue.

        Raises:
            ConfigError: when the bucket cannot be read.
        """
        return checkpoints.reading(self.folder, config=config, decided=decided)

    def predictor(self, name: str) -> tuple[Predictor, str]:
        """The model of a checkpoint, or of ``best``, the one with the best validation figure, and its weights' SHA-256.

        Raises:
            CheckpointError: when the checkpoint cannot be used, or none is the best.
            ConfigError: when the bucket cannot be read.
        """
        with checkpoints.reading(self.folder, name) as here:
            path = checkpoint.chosen(here) if name == "best" else here / name
            snapshot = checkpoint.load(path)
            return predictor.of(path, snapshot), snapshot.weights_sha256

    def asked(self, changes: Mapping[str, Any] | None = None) -> tuple[TrainConfig, Decided | None]:
        """The run's config, with ``changes`` on top, and what its last attempt had decided, if there was one.

        Raises:
            ConfigError: when it cannot be read.
        """
        try:
            with self.folder.on_disk(run_names.CONFIG) as path:
                return runfile.load(path, changes), runfile.decided(path)
        except OSError as error:
            raise _unreadable(self.folder, error) from None

    def write_config(self, config: TrainConfig, decided: Decided) -> None:
        """Write the config, and what is decided of the run; the file starts the same run again."""
        self.folder.write(run_names.CONFIG, runfile.to_yaml(config, decided))

    def lock(self) -> Lock:
        """Make this driver the only one that works on the run.

        Raises:
            ConfigError: when another driver works on it, or the folder cannot be written.
        """
        with storage.refusing(self.folder):
            return Lock(self.folder, _busy(self.name))


def create(
    config: ResolvedConfig,
    decided: Decided,
    tracking_uri: str | None = None,
    parent: Folder | None = None,
    name: str | None = None,
) -> tuple[RunFolder, Lock]:
    """Make the folder of a new run, and lock it.

    The store, the ``parent`` folder and the name are those of the config unless they are given; a run that has no name
    gets a new one.

    Raises:
        ConfigError: when it exists already, or cannot be written.
    """
    parent = parent or storage.at(config.storage)
    name = name or config.run_name or run_names.new(config)
    run = RunFolder(parent.below(name), uuid.uuid4().hex)
    taken = partial(run_names.taken, parent, name, uri.resolve_uri(tracking_uri or config.tracking_uri))
    described = json.dumps({"key": run.key, "name": name})
    contents = {run_names.CONFIG: runfile.to_yaml(config, decided), _DESCRIPTION: described}
    with storage.refusing(parent):
        return run, storage.claim(run.folder, contents, taken, _busy(name))


def open_existing(address: str, key: str) -> RunFolder:
    """The folder of the run with that key.

    Raises:
        ConfigError: when it is gone, or another run's.
    """
    if not address:
        raise ConfigError("", "the run failed before its first checkpoint, and left nothing: train it again")
    run = reopen(storage.at(address))
    if run.key != key:
        raise _damaged(run.folder)
    return run


def reopen(folder: Folder) -> RunFolder:
    """The run that is in ``folder``.

    Raises:
        ConfigError: when it is gone or damaged.
    """
    try:
        return RunFolder(folder, json.loads(folder.read(_DESCRIPTION))["key"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        raise _damaged(folder) from None
    except OSError as error:
        raise _unreadable(folder, error) from None


def is_half_made(folder: Folder) -> bool:
    """Whether a run's folder is missing, or its driver was killed before it had described the run; nothing was trained.

    Raises:
        ConfigError: when the folder cannot be read.
    """
    try:
        return not {_DESCRIPTION, checkpoints.CHECKPOINTS}.intersection(folder.names())
    except OSError as error:
        raise _unreadable(folder, error) from None


def discard(folder: Folder) -> None:
    """Remove a folder that this driver has made and not used."""
    with contextlib.suppress(OSError):
        folder.remove()


def _busy(name: str) -> ConfigError:
    return ConfigError("", f"run {name!r} is being trained by another process")


def _damaged(folder: Folder) -> ConfigError:
    return ConfigError("", f"the folder of the run, {folder.address}, is gone or damaged")


def _unreadable(folder: Folder, error: OSError) -> ConfigError:
    return ConfigError("", f"the folder of the run, {folder.address}, cannot be read: {storage.reason(error)}")
