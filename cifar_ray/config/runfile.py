"""How a run is written: as a YAML file, as the record of a checkpoint, and as MLflow parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cifar_ray.config import errors, limits, schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.model import USUAL, usual
from cifar_ray.config.option import choices, default_of, left_out
from cifar_ray.config.train import ResolvedConfig, TrainConfig

VERSION = 2
"""The version of the files of runs and of sweeps. It changes when an old file would mean something else."""

WHERE = ("run_name", "tracking_uri", "storage", "data_dir", "address", "verbose")
"""Where a run is, and not what it is."""

_IN_TIME_AND_MONEY = tuple(key for key in limits.KEYS if key != limits.PATIENCE)
KEPT = ("version", *WHERE, *_IN_TIME_AND_MONEY, "hang_timeout_s", "profile")
"""Where and how a run is kept: in its ``config.yaml``, and no parameter in MLflow, since no figure depends on it.

``--patience`` is a parameter: it decides how many epochs a run has. It stays the one that the run began with, as MLflow
changes none; a larger one that is given to ``resume`` is in ``config.yaml`` and in the tag ``cifar_ray.command``.
"""

_OF_TABLES = ("target", "features", "image_column")
OF_DATA = ("dataset", "image_size", "task", *_OF_TABLES, "test_share", "text", "val_share")
"""Fields that together decide which data set is read."""

_FOUND_IN_DATA = ("images", "class_weights_counts")


def merge(base: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """``base`` with ``values`` (as from flags) on top.

    The two ways to give the batch exclude each other: the one given last counts. What was found in files of the user's
    own is forgotten where others are given.
    """
    values = dict(values)
    of_data = {"dataset": base.dataset, "image_column": base.image_column}
    if values.keys() & of_data.keys() and base.model == usual(**of_data):  # a file need not name a model either
        values.setdefault("model", usual(**{name: values.get(name, of) for name, of in of_data.items()}))
    for field in dataclasses.fields(TrainConfig):
        of = {*(field.metadata.get("only") or {}), field.name.rpartition("_")[0]}
        of |= {*OF_DATA} if field.name in _FOUND_IN_DATA else set()
        if field.metadata.get("recorded") and values.keys() & of:
            base = dataclasses.replace(base, **{field.name: default_of(field)})
    for given, other in (("batch_size", "global_batch_size"), ("global_batch_size", "batch_size")):
        if given in values and other not in values:
            values[other] = None
    return schema.build(TrainConfig, schema.overlay(_asked(base), values))


def read(path: str | Path) -> dict[str, Any]:
    """The values in a YAML file of a run or of a sweep.

    Raises:
        ConfigError: when it cannot be read, is not a mapping, has a repeated key, or was written by another version.
            The sentence names the file.
    """
    from cifar_ray.config import yaml  # PyYAML, which training itself does without

    values = yaml.read(path)
    try:
        return _of_this_version(values)
    except ConfigError as error:
        raise ConfigError("", f"{path}: {error}") from None


def load(path: str | Path) -> TrainConfig:
    """Read a YAML file; keys that it lacks keep their defaults.

    Raises:
        ConfigError: as :func:`read`, and on an unknown key, a wrong type or an impossible value.
    """
    values = read(path)
    try:
        return schema.build(TrainConfig, _nested(values))
    except ConfigError as error:
        raise ConfigError("", f"{path}: {error}") from None


def from_mapping(values: Mapping[str, Any]) -> TrainConfig:
    """A config from what :func:`to_mapping` made, or a part of it.

    Raises:
        ConfigError: on an unknown key, a wrong type, an impossible value, or another version.
    """
    return schema.build(TrainConfig, _nested(_of_this_version(values)))


def resolved_from_mapping(values: Mapping[str, Any]) -> ResolvedConfig:
    """A resolved config from what :func:`to_mapping` made of one.

    Raises:
        ConfigError: as :func:`from_mapping`, and when it was not resolved.
    """
    return schema.build(ResolvedConfig, _nested(_of_this_version(values)))


def _of_this_version(values: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(values)
    version = values.pop("version", VERSION)
    if version != VERSION:
        raise ConfigError(
            "version",
            f"must be {VERSION}, got {errors.brief(version)}: the file was written by another version of cifar_ray",
        )
    return values


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a run, whose names may be dotted, as nested mappings."""
    return schema.nest(schema.flatten(values, is_leaf=lambda group: not group))


def to_mapping(config: TrainConfig) -> dict[str, Any]:
    """The config as plain values, with the version that reads it."""
    return {"version": VERSION, **_asked(config)}


def _asked(config: TrainConfig) -> dict[str, Any]:
    """The config as plain values, without what follows from the nodes of now."""
    values = schema.to_plain(config)
    if values.pop("cpus_follow", False):
        values["cpus_per_worker"] = None
    return values


def _own(config: TrainConfig) -> dict[str, Any]:
    """The config as plain values, without the options of other data sets and optimizers."""
    others = left_out(TrainConfig, {kind: getattr(config, kind) for kind in choices(TrainConfig)})
    values = {"version": VERSION, **_asked(config)}
    return {name: value for name, value in values.items() if name not in others}


def to_yaml(config: TrainConfig) -> str:
    """The config as a YAML file that starts the same run again.

    The run's name is left out, since every run has its own, and so are the options of other data sets.
    """
    from cifar_ray.config import yaml

    values = _own(config)
    del values["run_name"]
    return yaml.dump(values)


def params(config: ResolvedConfig) -> dict[str, str]:
    """The choices of a resolved config as flat MLflow parameters, with the sizes that follow from them."""
    flat = schema.flatten({name: value for name, value in _own(config).items() if name not in KEPT})
    flat["cpus_per_worker"] = config.cpus_per_worker
    if config.convolutions == USUAL:
        del flat["convolutions"]
    if config.images.inputs != "images":  # of each feature, which may be more than MLflow takes
        flat |= dict.fromkeys(("images.features", "images.mean", "images.std"))
    flat["world_size"] = config.world_size
    flat["nodes"] = config.placement.nodes
    flat["workers_per_node"] = config.placement.workers_per_node
    flat["batch_size"] = config.images_per_worker
    return {name: str(value) for name, value in flat.items() if value not in (None, [])}
