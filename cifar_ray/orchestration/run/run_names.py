"""Names of new runs. Nothing heavy is imported, so that a name that is taken is refused at once."""

from __future__ import annotations

import json
import time

from cifar_ray import storage
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.storage import Folder
from cifar_ray.tracking import uri
from cifar_ray.training.observer import MANIFEST, step_of

CHECKPOINTS = "checkpoints"
"""Name of the folder of a run's checkpoints."""

CONFIG = "config.yaml"
"""The file with a run's config in its folder."""

SWEEP = "sweep.yaml"
"""The file by which a sweep's folder is told from a run's."""


def new(config: ResolvedConfig) -> str:
    """A name that is readable, sortable, and unique to the millisecond."""
    moment = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 10**9 // 10**6:03d}"
    what = f"{config.model_name}-{config.dataset_name}-{config.topology}"
    return f"{what}-bs{config.images_per_worker}-seed{config.seed}-{moment}"


def check_free(config: TrainConfig, store: str) -> None:
    """Refuse the name of a new run, if it is given, that a run or a sweep in its storage has.

    Raises:
        ConfigError: saying what can be done with the run of that name; when the storage cannot be read.
    """
    if config.run_name is None:
        return
    above = storage.at(config.storage)
    with storage.refusing(above):
        if above.below(config.run_name).exists():
            raise taken(above, config.run_name, store)


def taken(above: Folder, name: str, store: str) -> ConfigError:
    """The error about a name that is taken in the storage ``above``; ``store`` is the new run's tracking URI."""
    rule = f"must be new, and {name!r} is in {above.address}"
    folder = above.below(name)
    if SWEEP in folder.names():
        return ConfigError(
            "run_name", f"{rule}; it is a sweep, which `cifar-ray sweep --resume {name}{uri.flag(store)}` continues"
        )
    epochs = _all_epochs(folder.below(CHECKPOINTS))
    if epochs:
        return ConfigError(
            "run_name",
            f"{rule}, trained to the end ({counted(epochs, 'epoch')}); give another name, with --weights {name} to "
            "start from its weights",
        )
    return ConfigError("run_name", f"{rule}; `cifar-ray resume {name}{uri.flag(store)}` continues it")


def _all_epochs(kept: Folder) -> int:
    """The epochs of a run that has trained all of them; 0 of any other."""
    steps = [name for name in kept.names() if step_of(name) >= 0]
    if not steps:
        return 0
    try:
        newest = json.loads(kept.below(max(steps, key=step_of)).read(MANIFEST))
        done, asked = int(newest["epoch"]), int(newest["config"]["epochs"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return asked if done >= asked else 0
