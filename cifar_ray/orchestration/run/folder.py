"""A run's folder: what it is, and where its checkpoints are."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from cifar_ray import storage
from cifar_ray.config import train as configs
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.run import copies
from cifar_ray.storage import Folder, Held
from cifar_ray.training import checkpoint, classifier
from cifar_ray.training.classifier import Classifier

_CONFIG = "config.yaml"


@dataclass(frozen=True)
class RunFolder:
    """One run's folder below ``--storage``.

    Attributes:
        place: the folder.
        key: the run's identity in the tracking store, chosen here.
    """

    place: Folder
    key: str

    @property
    def name(self) -> str:
        """The run's name."""
        return self.place.name

    @property
    def address(self) -> str:
        """What leads to it."""
        return self.place.address

    def checkpoint(self, name: str) -> str:
        """Address of the checkpoint of that name."""
        return self.place.below(copies.CHECKPOINTS).below(name).address

    def checkpoints(self, record: TrainConfig) -> AbstractContextManager[Path]:
        """Its checkpoints, the newest that goes on as ``record`` whole, while they are looked at.

        Raises:
            ConfigError: when they cannot be had.
        """
        return copies.reading(self.place, record=record)

    def classifier(self, name: str) -> tuple[Classifier, str]:
        """What a checkpoint has learned, and the SHA-256 of its weights.

        Args:
            name: of the checkpoint, or ``best`` for that with the highest test accuracy.

        Raises:
            CheckpointError: when it cannot be used.
            ConfigError: when it cannot be had.
        """
        with copies.reading(self.place, name) as here:
            path = (checkpoint.best(here) if name == "best" else None) or here / name
            return classifier.load(path), checkpoint.read_manifest(path).weights.sha256

    def config(self) -> TrainConfig:
        """The run's config, which no checkpoint changes.

        Raises:
            ConfigError: when it cannot be read.
        """
        with copies.file(self.place, _CONFIG) as path:
            return configs.load(path)

    def write_config(self, config: TrainConfig) -> None:
        """Keep the config; the file starts the same run again."""
        self.place.write(_CONFIG, configs.to_yaml(config))

    def lock(self, named: Folder | None = None) -> Held:
        """Make this driver the only one that works on the run, until it ends or releases the lock.

        Args:
            named: the folder that is named when it cannot be written; the run's by default.

        Raises:
            ConfigError: when another driver does, or the folder cannot be written.
        """
        taken = ConfigError("", f"run {self.name!r} is being trained by another process")
        with storage.refusing(named or self.place):
            return self.place.lock(taken)


def create(config: TrainConfig) -> tuple[RunFolder, Held]:
    """A folder for a new run, and the lock that makes this driver the only one that works on it.

    Raises:
        ConfigError: when it exists already, or cannot be written.
    """
    above = storage.at(config.storage)
    name = config.run_name or _name(config)
    folder = RunFolder(above.below(name), uuid.uuid4().hex)
    taken = ConfigError(
        "run_name", f"must be new, and {name!r} is in {above.address}; `cifar-ray resume {name}` continues it"
    )
    with storage.refusing(above):
        try:
            folder.place.make()
        except FileExistsError:
            if folder.place.exists():
                raise taken from None
            raise ConfigError("storage", f"must be a folder, got {above.address!r}") from None
    held = folder.lock(named=above)  # an object store says only now that there is no such bucket
    with storage.refusing(above), contextlib.ExitStack() as undo:
        undo.callback(held.release)
        if not is_half_made(folder.place):  # in an object store, two drivers may both have made it
            raise taken
        folder.write_config(config)
        folder.place.write(storage.DESCRIPTION, json.dumps({"key": folder.key, "name": name}))
        undo.pop_all()  # the lock is the caller's now
    return folder, held


def open_existing(address: str, key: str) -> RunFolder:
    """The folder of the run with that key, made earlier.

    Raises:
        ConfigError: when it is gone, or another run's.
    """
    folder = reopen(storage.at(address))
    if folder.key != key:
        raise _damaged(folder.place)
    return folder


def reopen(place: Folder) -> RunFolder:
    """The folder of a run made earlier.

    Raises:
        ConfigError: when it is gone or damaged.
    """
    try:
        return RunFolder(place, json.loads(place.read(storage.DESCRIPTION))["key"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        raise _damaged(place) from None
    except OSError as error:
        raise _unreadable(place, error) from None


def is_half_made(place: Folder) -> bool:
    """Whether it is not there, or its driver was killed before it had described the run; nothing was trained then.

    Raises:
        ConfigError: when the folder cannot be read.
    """
    try:
        return not {storage.DESCRIPTION, copies.CHECKPOINTS}.intersection(place.names())
    except OSError as error:
        raise _unreadable(place, error) from None


def discard(place: Folder) -> None:
    """Remove a folder that this driver has made and in which nothing has begun."""
    with contextlib.suppress(OSError):
        place.remove()


def _damaged(place: Folder) -> ConfigError:
    return ConfigError("", f"the folder of the run, {place.address}, is gone or damaged")


def _unreadable(place: Folder, error: OSError) -> ConfigError:
    return ConfigError("", f"the folder of the run, {place.address}, cannot be read: {storage.reason(error)}")


def _name(config: TrainConfig) -> str:
    """Readable, sortable, and unique to the second and a little more."""
    moment = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 10**9 // 10**6:03d}"
    return f"{config.model}-{config.dataset}-{config.topology}-bs{config.batch_size}-seed{config.seed}-{moment}"
