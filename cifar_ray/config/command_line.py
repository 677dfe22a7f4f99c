"""How a run or a sweep is asked for in words: on the command line, in a job, and in a run's record."""

from __future__ import annotations

import os
import socket
from typing import Annotated

from cifar_ray._version import __version__
from cifar_ray.config import runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.flags import Given, Of
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


def train(*, config: str | None = None, options: Annotated[Given, Of(TrainConfig)]) -> TrainConfig:
    """Return the run that ``cifar-ray train`` is asked for.

    Args:
        config: YAML file with any of these options; flags override it.
        options: those of the run.
    """
    return runfile.load(config, options)


def sweep(
    file: str | None = None,
    *,
    grid: tuple[str, ...] = (),
    options: Annotated[
        Given, Of(SweepConfig, without=("grid", "train")), Of(TrainConfig, without=("run_name", "elastic"))
    ],
) -> SweepConfig:
    """Return the new sweep that ``cifar-ray sweep`` is asked for.

    Args:
        file: YAML file with the sweep.
        grid: FIELD=VALUE,VALUE ...: fields of a run and the values they take, instead of the file's. For a search also
            ranges to draw from: FIELD=uniform:LOW:HIGH, loguniform:LOW:HIGH and int:LOW:HIGH.
        options: those of the sweep, and those that all of its runs share.
    """
    given = {**options, **({"grid": grid} if grid else {})}
    try:
        return sweeps.from_mapping(sweeps.merge(runfile.read(file) if file else {}, given, file))
    except ConfigError as error:
        if file is not None and (error.key == "train" or (error.key == "grid" and not grid)):
            raise ConfigError("", f"{file}: {error}") from None
        raise
