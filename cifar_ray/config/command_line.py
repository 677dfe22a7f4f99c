"""How a sweep is asked for in words, and how a job greets who has submitted it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cifar_ray._version import __version__
from cifar_ray.config import runfile, schema
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig

SUBMITTED_WITH = "CIFAR_RAY_SUBMITTED_WITH"
"""Variable that tells the command of a job which cifar_ray has read and submitted it."""

SUBMITTED_BY = "CIFAR_RAY_SUBMITTED_BY"
"""Variable with the name of the person who submitted a job: the user of its runs."""


def greet() -> None:
    """In a job, print the version and the host: its client then knows that it has begun."""
    theirs = os.environ.get(SUBMITTED_WITH)
    if theirs not in (None, __version__):
        problem = f"the cluster has cifar_ray {__version__}, and the job was submitted with {theirs}; install the same"
        raise ConfigError("", problem)
    if theirs is not None:
        print(f"cifar_ray {__version__} on {socket.gethostname()}", flush=True)


def sweep(file: str | None, options: Mapping[str, Any]) -> SweepConfig:
    """The new sweep of a YAML file with flags on top."""
    values = runfile.read(file) if file else {}
    with runfile.blamed(None if "grid" in options else file, options):
        return sweeps.from_mapping(merged(values, options, file))


def merged(base: Mapping[str, Any], given: Mapping[str, Any], file: str | None) -> dict[str, Any]:
    """The values of a ``file`` of a sweep with flags on top: options of the sweep, all others shared by its runs.

    A sweep without a name is called as its file.

    Raises:
        ConfigError: when the file has an option of the runs at its top.
    """
    own, of_run = schema.field_types(SweepConfig).keys(), schema.field_types(TrainConfig)
    if misplaced := [key for key in map(str, base) if key not in own and key.partition(".")[0] in of_run]:
        raise ConfigError("", f"put {', '.join(misplaced)} under `train:`, where options of all runs belong")
    values = {**base, **{key: value for key, value in given.items() if key in own}}
    if file is not None:
        values.setdefault("name", Path(file).stem)
    shared = values.get("train") or {}
    if isinstance(shared, Mapping):  # else SweepConfig refuses it
        values["train"] = runfile.merge(shared, {key: value for key, value in given.items() if key not in own})
    return values
