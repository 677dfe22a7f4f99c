"""How a sweep is written: as a YAML file, and as words on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cifar_ray.config import errors, runfile, schema, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.search import Range
from cifar_ray.config.sweep import BATCHES, SweepConfig, grids, is_list, options, shared_by_all
from cifar_ray.config.train import TrainConfig


def load(path: str | Path) -> dict[str, Any]:
    """The values in a YAML file, for :func:`from_mapping` when flags have been put on top of them.

    Raises:
        ConfigError: when it cannot be read, or was written by another version. The sentence names the file.
    """
    return runfile.read(path)


def merge(base: Mapping[str, Any], flags: Mapping[str, Any], file: str | None) -> dict[str, Any]:
    """The values of a file with flags on top: options of the sweep by their names, all others shared by its runs.

    Args:
        base: what :func:`load` has read.
        flags: option -> its words; ``grid`` has the words of :func:`read_axes`.
        file: where ``base`` was read; the sweep is named after it when it has no name.

    Raises:
        ConfigError: when an axis is not understood, or the file has an option of the runs at its top.
    """
    names = {field.name for field in dataclasses.fields(SweepConfig)}
    of_run = schema.field_types(TrainConfig)
    if misplaced := [key for key in map(str, base) if key not in names and key.partition(".")[0] in of_run]:
        these = ", ".join(misplaced)
        raise ConfigError("", f"{file}: put {these} under `train:`, where the options of all runs belong")
    flags = dict(flags)
    merged = dict(base)
    if "grid" in flags:
        merged["grid"] = read_axes(flags.pop("grid"))
    merged = schema.overlay(merged, {key: flags.pop(key) for key in names & flags.keys()})
    if file is not None:
        merged.setdefault("name", Path(file).stem)
    shared = schema.flatten(options(merged.get("train")))
    flat = schema.flatten(flags)
    for given, other in (BATCHES, BATCHES[::-1]):
        if given in flat and other not in flat:  # the one given last counts
            shared.pop(other, None)
    merged["train"] = schema.nest({**shared, **flat})
    return merged


def from_mapping(values: Mapping[str, Any]) -> SweepConfig:
    """A sweep from plain values.

    Raises:
        ConfigError: on an unknown key, a wrong type or an impossible value.
    """
    grid, shared = grids(values.get("grid", {}), strict=False), shared_by_all(values.get("train"), strict=False)
    return schema.build(SweepConfig, {**values, "grid": grid, "train": shared})


def read_axes(words: Sequence[str]) -> dict[str, Any]:
    """``batch_size=16,64 topology=1x1,1x2 lr=loguniform:0.01:0.3`` as one grid.

    Of a field that takes several words, ``+`` joins those of one value: ``freeze=0,0+1``.

    Raises:
        ConfigError: when a word has no ``=``, a field comes twice, or it is an option of the sweep.
    """
    axes: dict[str, Any] = {}
    of_sweep = schema.field_types(SweepConfig).keys() - {"grid", "train"}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError("grid", f"must be FIELD=VALUE,VALUE ..., got {errors.brief(word)}")
        if name in of_sweep:
            raise ConfigError(
                "grid", f"must not have {name}, which is an option of the sweep: use {errors.flag_of(name)}"
            )
        if name in axes:
            raise ConfigError("grid", f"must name every field once, and {name} comes twice")
        axes[name] = text.split(",") if text else []
        if "" in axes[name]:
            raise ConfigError("grid", f"must have a value on both sides of a comma, got {errors.brief(word)}")
        if is_list(name):
            axes[name] = [value.split("+") for value in axes[name]]
    return axes


def to_yaml(sweep: SweepConfig) -> str:
    """The sweep as a YAML file that makes the same runs again."""
    values: dict[str, Any] = {"version": runfile.VERSION, **dataclasses.asdict(sweep)}
    values["grid"] = [
        {
            name: {item.kind: [item.low, item.high]} if isinstance(item, Range) else schema.plain(item)
            for name, item in axes.items()
        }
        for axes in sweep.grid
    ]
    values["train"] = schema.plain(sweep.train)
    return yaml.dump(values)
