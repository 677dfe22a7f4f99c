"""A run's folder: its name, what is in it, and who works on it.

Nothing heavy is imported, so that a name that is taken is refused at once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from cifar_ray import storage
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.storage import Folder, Lock

CHECKPOINTS = "checkpoints"
"""Name of the folder of a run's checkpoints."""

CONFIG = "config.yaml"
"""The file with a run's config in its folder."""

SWEEP = "sweep.yaml"
"""The file by which a sweep's folder is told from a run's."""

_DESCRIPTION = "run.json"


@dataclass(frozen=True)
class RunFolder:
    """One run's folder below ``--storage``; ``key`` is the run's identity in the tracking store, chosen with it."""

    folder: Folder
    key: str

    @classmethod
    def create(
        cls, config: ResolvedConfig, decided: Decided, parent: Folder | None = None, name: str | None = None
    ) -> tuple[RunFolder, Lock]:
        """Make the folder of a new run, and lock it.

        The ``parent`` folder and the name are the config's unless they are given; a run without one gets a new name.

        Raises:
            ConfigError: when it exists already, or cannot be written.
        """
        parent = parent or storage.at(config.storage)
        name = name or config.run_name or _new_name(config)
        run = cls(parent.below(name), uuid.uuid4().hex)
        described = json.dumps({"key": run.key, "name": name})
        contents = {CONFIG: runfile.to_yaml(config, decided), _DESCRIPTION: described}
        with storage.refusing(parent):
            return run, storage.claim(run.folder, contents, partial(_taken, parent, name), _busy(name))

    @classmethod
    def at(cls, address: str, key: str = "") -> RunFolder:
        """The run that is in a folder, which has that ``key`` if it is given.

        Raises:
            ConfigError: when it is gone, damaged, or another run's.
        """
        if not address:
            raise ConfigError("", "the run failed before its first checkpoint, and left nothing: train it again")
        folder = storage.at(address)
        with _reading(folder):
            known = json.loads(folder.read(_DESCRIPTION))["key"]
            if key and known != key:
                raise KeyError(known)
            return cls(folder, known)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def address(self) -> str:
        return self.folder.address

    def checkpoint(self, name: str) -> str:
        """The address of a checkpoint."""
        return self.folder.below(CHECKPOINTS).below(name).address

    def asked(self, changes: Mapping[str, Any] | None = None) -> tuple[TrainConfig, Decided | None]:
        """The run's config, with ``changes`` on top, and what its last attempt had decided, if there was one.

        Raises:
            ConfigError: when it cannot be read.
        """
        with _reading(self.folder), self.folder.on_disk(CONFIG) as path:
            return runfile.load(path, changes), runfile.decided(path)

    def write_config(self, config: TrainConfig, decided: Decided) -> None:
        """Write what starts the same run again."""
        self.folder.write(CONFIG, runfile.to_yaml(config, decided))

    def lock(self) -> Lock:
        """Make this driver the only one that works on the run.

        Raises:
            ConfigError: when another driver works on it, or the folder cannot be written.
        """
        with storage.refusing(self.folder):
            return Lock(self.folder, _busy(self.name))


def check_free(config: TrainConfig) -> None:
    """Refuse the name of a new run, if it is given, that a run or a sweep in its storage has.

    Raises:
        ConfigError: saying what can be done with the run of that name; when the storage cannot be read.
    """
    if config.run_name is None:
        return
    parent = storage.at(config.storage)
    with storage.refusing(parent):
        if parent.below(config.run_name).exists():
            raise _taken(parent, config.run_name)


def is_half_made(folder: Folder) -> bool:
    """Whether a run's folder is missing, or its driver was killed before it had described the run; nothing was trained.

    Raises:
        ConfigError: when the folder cannot be read.
    """
    with _reading(folder):
        return not {_DESCRIPTION, CHECKPOINTS}.intersection(folder.names())


def discard(folder: Folder) -> None:
    """Remove a folder that this driver has made and not used."""
    with suppress(OSError):
        folder.remove()


def _new_name(config: ResolvedConfig) -> str:
    """A name that is readable, sortable, and unique to the millisecond."""
    moment = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 10**9 // 10**6:03d}"
    what = f"{config.model_name}-{config.dataset_name}-{config.topology}"
    return f"{what}-bs{config.images_per_worker}-seed{config.seed}-{moment}"


def _taken(parent: Folder, name: str) -> ConfigError:
    """The error about a name that is taken in ``parent``."""
    advice = f"`cifar-ray resume {name}` continues it, and --weights {name} starts from its weights"
    if SWEEP in parent.below(name).names():
        advice = f"it is a sweep, which `cifar-ray sweep --resume {name}` continues"
    return ConfigError("run_name", f"must be new, and {name!r} is in {parent.address}; {advice}")


def _busy(name: str) -> ConfigError:
    return ConfigError("", f"run {name!r} is being trained by another process")


@contextmanager
def _reading(folder: Folder) -> Iterator[None]:
    """Context manager: turn what goes wrong while a run's folder is read into one sentence."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f": {storage.reason(error)}" if isinstance(error, OSError) else ""
        raise ConfigError("", f"the folder of the run, {folder.address}, is gone or damaged{why}") from None
