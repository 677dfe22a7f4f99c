"""A run's folder: what it is, and where its checkpoints are."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from cifar_ray import config as configs
from cifar_ray import files
from cifar_ray.config import TrainConfig
from cifar_ray.strict import ConfigError

_DESCRIPTION, _CONFIG = "run.json", "config.yaml"


@dataclass(frozen=True)
class RunFolder:
    """One run's folder below ``--storage``.

    Attributes:
        path: the folder.
        key: the run's identity in the tracking store, chosen here.
    """

    path: Path
    key: str

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self.path / "checkpoints"

    def config(self) -> TrainConfig:
        """The config that the run was started with.

        Raises:
            ConfigError: when it cannot be read.
        """
        return configs.load(self.path / _CONFIG)

    def write_config(self, config: TrainConfig) -> None:
        """Keep the config; the file starts the same run again."""
        files.write_whole(self.path / _CONFIG, configs.to_yaml(config))

    def lock(self) -> FileLock:
        """Make this driver the only one that works on the run, until it ends or releases the lock.

        Raises:
            ConfigError: when another driver does.
        """
        return files.hold(
            self.path / ".driver.lock", ConfigError("", f"run {self.name!r} is being trained by another process")
        )


def create(config: TrainConfig) -> RunFolder:
    """A folder for a new run.

    Raises:
        ConfigError: when it exists already, or cannot be written.
    """
    storage = files.storage(config.storage)
    name = config.run_name or _name(config)
    path = storage / name
    try:
        storage.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        folder = RunFolder(path, uuid.uuid4().hex)
        folder.write_config(config)
        description = {"key": folder.key, "name": name}
        files.write_whole(path / _DESCRIPTION, json.dumps(description))
    except FileExistsError:
        if path.exists():
            raise ConfigError(
                "run_name", f"must be new, and {name!r} is in {storage}; `cifar-ray resume {name}` continues it"
            ) from None
        raise ConfigError("storage", f"must be a folder, got {str(storage)!r}") from None
    except OSError as error:
        raise ConfigError("storage", f"must be a folder that can be written; {storage}: {error.strerror}") from None
    return folder


def open_existing(path: Path, key: str) -> RunFolder:
    """The folder of the run with that key, made earlier.

    Raises:
        ConfigError: when it is gone, or another run's.
    """
    folder = reopen(path)
    if folder.key != key:
        raise _damaged(path)
    return folder


def reopen(path: Path) -> RunFolder:
    """The folder of a run made earlier.

    Raises:
        ConfigError: when it is gone or damaged.
    """
    try:
        return RunFolder(path, json.loads((path / _DESCRIPTION).read_text(encoding="utf-8"))["key"])
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(path) from None


def _damaged(path: Path) -> ConfigError:
    return ConfigError("", f"the folder of the run, {path}, is gone or damaged")


def _name(config: TrainConfig) -> str:
    """Readable, sortable, and unique to the second and a little more."""
    moment = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 10**9 // 10**6:03d}"
    return f"{config.model}-{config.dataset}-{config.topology}-bs{config.batch_size}-seed{config.seed}-{moment}"
