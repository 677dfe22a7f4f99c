"""How a run or a sweep is asked for in words: on the command line, in a job, and in a run's record."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cifar_ray._version import __version__
from cifar_ray.config import errors, runfile, schema
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
        return sweeps.from_mapping(merged(runfile.read(file) if file else {}, given, file))
    except ConfigError as error:
        if file is not None and (error.key == "train" or (error.key == "grid" and not grid)):
            raise ConfigError("", f"{file}: {error}") from None
        raise


def merged(base: Mapping[str, Any], given: Mapping[str, Any], file: str | None) -> dict[str, Any]:
    """The values of a ``file`` of a sweep with flags on top: options of the sweep, all others shared by its runs.

    A sweep without a name is called as its file.

    Raises:
        ConfigError: when an axis is not understood, or the file has an option of the runs at its top.
    """
    own, of_run = schema.field_types(SweepConfig).keys(), schema.field_types(TrainConfig)
    if misplaced := [key for key in map(str, base) if key not in own and key.partition(".")[0] in of_run]:
        raise ConfigError("", f"{file}: put {', '.join(misplaced)} under `train:`, where options of all runs belong")
    values = schema.overlay(base, {key: value for key, value in given.items() if key in own})
    if "grid" in given:
        values["grid"] = axes(given["grid"])
    if file is not None:
        values.setdefault("name", Path(file).stem)
    shared = values.get("train") or {}
    if isinstance(shared, Mapping):  # else SweepConfig refuses it
        values["train"] = runfile.merge(shared, {key: value for key, value in given.items() if key not in own})
    return values


def axes(words: Sequence[str]) -> dict[str, Any]:
    """``batch_size=16,64 topology=1x1,1x2 lr=loguniform:0.01:0.3`` as one grid.

    Of a field that takes several words, ``+`` joins those of one value: ``freeze=0,0+1``.

    Raises:
        ConfigError: when a word has no ``=``, or a field comes twice.
    """
    grid: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError("grid", f"must be FIELD=VALUE,VALUE ..., got {errors.brief(word)}")
        if name in grid:
            raise ConfigError("grid", f"must name every field once, and {name} comes twice")
        grid[name] = text.split(",") if text else []
        if schema.is_list(schema.type_of(TrainConfig, name)):
            grid[name] = [value.split("+") for value in grid[name]]
    return grid
