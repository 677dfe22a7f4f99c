"""How a run is written: as a YAML file, as the record of a checkpoint, and as MLflow parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cifar_ray.config import errors, limits, schema, yaml
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.model import USUAL
from cifar_ray.config.option import is_own, left_out
from cifar_ray.config.train import ResolvedConfig, TrainConfig

VERSION = 2
"""The version of the files of runs and of sweeps. It changes when an old file would mean something else."""

WHERE = ("run_name", "tracking_uri", "storage", "data_dir", "address", "verbose")
"""Where a run is, and not what it is."""

KEPT = ("version", *WHERE, *(key for key in limits.KEYS if key != limits.PATIENCE), "hang_timeout_s", "profile_steps")
"""Where and how a run is kept: in its ``config.yaml``, and no parameter in MLflow, since no figure depends on it.

``--patience`` is a parameter: it decides how many epochs a run has. It stays the one that the run began with, as MLflow
changes none; a larger one that is given to ``resume`` is in ``config.yaml`` and in the tag ``cifar_ray.command``.
"""

OF_DATA = ("dataset", "image_size", "task", "target", "features", "image_column", "test_share", "text", "val_share")
"""Fields that together decide which data set is read."""

_OF_OWN_DATA = ("digest", "num_classes", "train_size", "val_size", "test_size", "test_copies", "val_copies")
"""Facts of data of the user's own that are parameters in MLflow."""

BATCHES = ("batch_size", "global_batch_size")
"""The two ways to give the batch; the one given last counts."""

_DECIDED = "decided"
"""Key of a run's file under which is what was decided of the run. Whoever starts another from the file decides anew."""


def merge(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Plain ``values``, as a file has them, with ``given`` ones (as from flags) on top; nothing is checked yet.

    The two ways to give the batch exclude each other: the one given last counts. What was recorded of a choice is
    forgotten where another is given, and so are the options of another model or strategy.
    """
    flat = schema.flatten(values)
    others = [kind for kind in ("model", "strategy") if kind in given and given[kind] != flat.get(kind, given[kind])]
    dropped = {f"{kind}_options" for kind in others}
    for field in dataclasses.fields(TrainConfig):
        if field.metadata["recorded"] and field.name.rpartition("_")[0] in given:
            dropped.add(field.name)
    if given.keys() & {*BATCHES}:
        dropped |= {*BATCHES}
    kept = {name: value for name, value in flat.items() if name.partition(".")[0] not in dropped}
    return schema.nest({**kept, **schema.flatten(given)})


def read(path: str | Path) -> dict[str, Any]:
    """The values in a YAML file of a run or of a sweep.

    Raises:
        ConfigError: when it cannot be read, is not a mapping, has a repeated key, or was written by another version.
            The sentence names the file.
    """
    values = yaml.read(path)
    with blamed(path):
        return _of_this_version(values)


def load(path: str | Path | None, given: Mapping[str, Any] | None = None) -> TrainConfig:
    """The run that a YAML file, if any, describes, with the ``given`` values (as from flags) on top."""
    given = given or {}
    values = {} if path is None else read(path)
    with blamed(path, given):
        return schema.build(TrainConfig, merge(values, given))


@contextmanager
def blamed(path: str | Path | None, given: Collection[str] = ()) -> Iterator[None]:
    """Context manager: a mistake in a value that was not ``given``, as by a flag, is that of the file, if any."""
    try:
        yield
    except ConfigError as error:
        if path is None or error.key.partition(".")[0] in given:
            raise
        raise ConfigError("", f"{path}: {error}") from None


def decided(path: Path) -> Decided | None:
    """What the file of a run says was decided of it; None when nothing was yet."""
    values = yaml.read(path).get(_DECIDED)
    return None if values is None else schema.build(Decided, values)


def resolved_from_mapping(values: Mapping[str, Any]) -> ResolvedConfig:
    """A resolved config from what :func:`to_mapping` made of one."""
    return schema.build(ResolvedConfig, _of_this_version(values))


def _of_this_version(values: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in values.items() if name != _DECIDED}
    version = values.pop("version", VERSION)
    if version != VERSION:
        raise ConfigError(
            "version",
            f"must be {VERSION}, got {errors.brief(version)}: the file was written by another version of cifar_ray",
        )
    return values


def to_mapping(config: TrainConfig) -> dict[str, Any]:
    """The config as plain values, without options of other data sets and optimizers, with the version that reads it."""
    others = left_out(TrainConfig, vars(config))
    values = {name: value for name, value in schema.to_plain(config).items() if name not in others}
    return {"version": VERSION, **values}


def to_yaml(config: TrainConfig, decided: Decided | None = None) -> str:
    """The config as a YAML file that starts the same run again, and what was decided of this one.

    The run's name is left out, since every run has its own.
    """
    values = {name: value for name, value in to_mapping(config).items() if name != "run_name"}
    return yaml.dump(values if decided is None else {**values, _DECIDED: schema.to_plain(decided)})


def params(config: ResolvedConfig, decided: Decided) -> dict[str, str]:
    """The choices of a resolved config, and what was decided, as flat MLflow parameters, with the sizes that follow."""
    values = {name: value for name, value in to_mapping(config).items() if name not in KEPT}
    found = {name: value for name, value in vars(decided).items() if name != "data" and value is not None}
    flat = schema.flatten({**values, **found})
    if flat["convolutions"] == USUAL:
        del flat["convolutions"]
    if decided.data is not None and is_own(config.dataset):  # others are known by their names
        flat |= {f"data.{name}": getattr(decided.data, name) for name in _OF_OWN_DATA}
    flat["world_size"] = decided.world_size
    flat["nodes"] = decided.placement.nodes
    flat["workers_per_node"] = decided.placement.workers_per_node
    flat["batch_size"] = config.share(decided.world_size)
    return {name: str(value) for name, value in flat.items() if value not in (None, [], {})}
