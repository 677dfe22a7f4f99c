"""What one sweep is: the values that vary, and what all of its runs share.

``SweepConfig`` is to a sweep what ``TrainConfig`` is to a run. Every combination of values is a *cell*; with
several seeds, every cell is trained once with each.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from cifar_ray.config import cell_names, errors, limits, runfile, schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.limits import DurationText
from cifar_ray.config.option import check_choices, option
from cifar_ray.config.schema import STRICT, Count, Positive, Whole, plainly
from cifar_ray.config.search import (
    Asha,
    Median,
    ObjectiveText,
    Range,
    SchedulerName,
    SearchName,
    is_range,
    spelled,
)
from cifar_ray.config.sections import Measure, Name
from cifar_ray.config.train import TrainConfig

OWN = (
    *("address", "local_nodes", "oversubscribe", "price"),
    *("data_dir", "experiment", "tracking_uri", "storage", "verbose"),
)
"""Fields of ``TrainConfig`` that are the same for all runs of a sweep, and so no axes."""

MOST_RUNS = 10_000
"""Runs of one sweep, at most."""

BATCHES = ("batch_size", "global_batch_size")
"""The two ways to give the batch; one of them counts."""

HELD = {"batch_size": "global_batch_size"}
"""What an axis is called in a sweep that holds the global batch."""

_USUAL = (*cell_names.SHORT, "seed")


Axes = Mapping[str, Any]
"""Dotted field name -> a list of values, or a :class:`Range`."""


def grids(value: Any, strict: bool) -> tuple[Axes, ...]:
    """One or several grids, with the fields' own types.

    Args:
        value: a mapping of fields to their values, or a list of such. A single value is a list of one;
            ``{"uniform": [0, 1]}`` and ``uniform:0:1`` are a range; fields may be nested.
        strict: as for :func:`schema.field`.

    Raises:
        ConfigError: when it is nothing of that kind, or a value does not fit its field.
    """
    several = [value] if isinstance(value, Mapping) else value
    if not isinstance(several, list | tuple) or not all(isinstance(axes, Mapping) for axes in several):
        raise ConfigError(
            "grid", f"must be a mapping of fields to lists of values, or a list of such, got {errors.brief(value)}"
        )
    return tuple(_axes(axes, strict) for axes in several)


def _axes(axes: Mapping[str, Any], strict: bool) -> Axes:
    made: dict[str, Any] = {}
    for name, values in schema.flatten(axes, is_leaf=is_range).items():
        _check_field("grid", name)
        values = spelled(values)
        if isinstance(values, Mapping):
            values = Range.read(name, values)
        if isinstance(values, Range):
            made[name] = values
            continue
        is_one_list = (
            is_list(name) and isinstance(values, list) and not any(isinstance(v, list | tuple) for v in values)
        )
        several = values if isinstance(values, list) and not is_one_list else [values]
        made[name] = [schema.field(TrainConfig, name, item, strict) for item in several]
    return made


def is_list(name: str) -> bool:
    """Whether a field of a run takes several words."""
    return typing.get_origin(schema.bare(schema.type_of(TrainConfig, name))) is tuple


def shared_by_all(value: Any, strict: bool) -> dict[str, Any]:
    """What all runs share, as :func:`options` takes it, with the fields' own types; ``strict`` as :func:`schema.field`.

    Raises:
        ConfigError: when it has something that is no field of a run, or a value does not fit.
    """
    flat = schema.flatten(options(value))
    for name in flat:
        _check_field("train", name)
    return schema.nest({name: schema.field(TrainConfig, name, item, strict) for name, item in flat.items()})


def options(value: Any) -> Mapping[str, Any]:
    """Options of a run as a mapping: of a ``TrainConfig``, those that differ from the defaults; of None, nothing.

    Raises:
        ConfigError: when it is neither a mapping nor a ``TrainConfig``.
    """
    changes = {} if value is None else _changed(value, TrainConfig())
    if not isinstance(changes, Mapping):
        raise ConfigError("train", f"must be a mapping of fields to values, got {errors.brief(changes)}")
    return changes


def _changed(value: Any, default: Any) -> Any:
    """A dataclass, also within a mapping, as a mapping of the fields that differ from the default one."""
    if dataclasses.is_dataclass(default) and isinstance(value, type(default)):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(default)}
        value = {name: item for name, item in named.items() if item != getattr(default, name)}
    if not isinstance(value, Mapping):
        return value
    return {name: _changed(item, getattr(default, str(name), None)) for name, item in value.items()}


def _check_field(key: str, name: str) -> None:
    """Refuse what is no field of a run, naming ``key``, where it was given."""
    if schema.type_of(TrainConfig, name) is None:
        if name in schema.field_types(SweepConfig):
            raise ConfigError(key, f"must not have {name}, which is an option of the sweep: give it beside {key}")
        near = errors.suggestion(name, schema.flat_types(TrainConfig))
        raise ConfigError(key, f"has {errors.brief(name)}, which is no field of a run{near}")


@plainly
@dataclass(frozen=True, config=STRICT)
class SweepConfig:
    """Train every combination of values, and record all runs under one parent."""

    name: Name = field(default_factory=functools.partial(time.strftime, "sweep-%Y%m%d-%H%M%S"))
    """Name of the sweep, new in its storage folder. Default: one made from the time."""

    grid: Annotated[tuple[Axes, ...], BeforeValidator(functools.partial(grids, strict=True))] = ()
    """One or several grids; each maps fields of a run to the values they take."""

    train: Annotated[Mapping[str, Any], BeforeValidator(functools.partial(shared_by_all, strict=True))] = field(
        default_factory=dict
    )
    """Fields of a run that all runs share, or a TrainConfig, of which fields that differ from their default count."""

    seeds: Count = 1
    """Runs per cell, with seeds counting up from the runs' own."""

    hold: Literal["batch", "global_batch"] | None = None
    """What to keep when the number of workers changes: 'batch' per worker, so that the global batch grows, or
    'global_batch', for which batch_size is that of a single worker. Default: 'batch' if only batch_size is named, in
    the grid or for all runs; else 'global_batch'."""

    measure: Measure = "all"
    """What reports may use: 'accuracy' (ignore times, the machine was busy), 'times' (ignore accuracy, runs of a few
    steps), or all."""

    search: SearchName = "grid"
    """Train every combination, or --samples of them: 'random' ones, or those that Optuna proposes one after another
    (TPE), knowing how the earlier ones came out."""

    samples: Count | None = None
    """Combinations to draw from each grid in a random search, or to train in one with Optuna."""

    scheduler: SchedulerName = "none"
    """Stop runs early: 'asha' those whose validation figure, such as the accuracy, falls behind the best at some
    epochs, 'median' those whose best figure so far is behind the median of the other runs' means."""

    asha: Asha = option(Asha, weights=None, only={"scheduler": ("asha",)})
    """Options of ASHA."""

    median: Median = option(Median, weights=None, only={"scheduler": ("median",)})
    """Options of the median stopping rule."""

    objective: ObjectiveText | None = None
    """NAME:min or NAME:max, the figure that a scheduler and Optuna go by and that names the best run, such as
    val/f1:max or images_per_s:max. Default: the task's main figure on the validation images, such as the accuracy."""

    repeat: Whole = 0
    """Other seeds with which the best run of a search is trained again, before it is called ahead."""

    skip_infeasible: bool = False
    """Skip cells that cannot run here, instead of refusing the sweep."""

    max_concurrent: Count | None = None
    """Most runs at once. Default: as many as the cluster holds."""

    max_time: DurationText | None = None
    """Time that the whole sweep may take on the nodes: 90s, 10m, 2h or 1h30m. It starts no run that it cannot expect to
    finish, and stops those that run at the limit, with a checkpoint; --resume with a larger one goes on. Default: no
    limit."""

    max_cost: Positive | None = None
    """USD that all runs together may cost, at --price; kept as --max-time is. Default: no limit."""

    def __post_init__(self) -> None:
        check_choices(self)
        _check(self)

    @property
    def held(self) -> str:
        """``hold``, decided."""
        if self.hold is not None:
            return self.hold
        names = {name for axes in self.grid for name in axes} | set(self.train)
        return "batch" if names.intersection(BATCHES) == {"batch_size"} else "global_batch"

    @property
    def is_search(self) -> bool:
        """Whether it is after its best run, and not after a table of all."""
        return (self.search, self.scheduler, self.objective) != ("grid", "none", None)

    @property
    def axes(self) -> tuple[str, ...]:
        """The fields that tell the cells apart, in the order of the grids; the batch by the name of what is held.

        What only follows from the grid, such as each model's own epochs, is left out unless it is needed.
        """
        fields = list(dict.fromkeys(name for axes in self.grid for name in axes))
        varying = [name for name in fields if self._varies(name)]
        chosen = [name for name in varying if name in _USUAL or any(_many(axes.get(name)) for axes in self.grid)]
        if _combinations(self) <= MOST_RUNS:
            combined = combinations(self)
            told = {tuple(repr(values.get(name)) for name in chosen) for values in combined}
            varying = chosen if len(told) == len(combined) else varying
        held = HELD if self.held == "global_batch" else {}
        return tuple(dict.fromkeys(held.get(name, name) for name in varying))

    def _varies(self, name: str) -> bool:
        lists = [axes[name] for axes in self.grid if name in axes]
        values = {repr(value) for values in lists for value in (values if isinstance(values, list) else [values])}
        return len(values) > 1 or len(lists) < len(self.grid) or any(_many(axes.get(name)) for axes in self.grid)

    @property
    def base(self) -> TrainConfig:
        """What is the same for all runs: where they run and are recorded."""
        values = {name: value for name, value in self.train.items() if name in OWN}
        return schema.build(TrainConfig, values)


def combinations(sweep: SweepConfig) -> list[dict[str, Any]]:
    """Every combination of the grids' values, in their order; a random search draws some of them elsewhere."""
    return [dict(zip(axes, values, strict=True)) for axes in sweep.grid for values in itertools.product(*axes.values())]


def _combinations(sweep: SweepConfig) -> float:
    """How many combinations there are; infinitely many with a range."""
    return sum(
        math.prod(math.inf if isinstance(values, Range) else len(values) for values in axes.values())
        for axes in sweep.grid
    )


def _many(values: Any) -> bool:
    return isinstance(values, Range) or (isinstance(values, list) and len(values) > 1)


def _check(sweep: SweepConfig) -> None:
    if (sweep.search != "grid") != (sweep.samples is not None):
        raise ConfigError("samples", "must be given for --search random and optuna, and for nothing else")
    if sweep.repeat and not sweep.is_search:
        raise ConfigError("repeat", "is for a search: --search random or optuna, a --scheduler or an --objective")
    if not sweep.grid or not any(sweep.grid):
        raise ConfigError("grid", "must name at least one field with its values, such as batch_size=16,64")
    if "run_name" in sweep.train:
        raise ConfigError("run_name", "is not for a sweep, whose runs are named after their cells")
    if any("elastic" in axes for axes in (sweep.train, *sweep.grid)):
        raise ConfigError(
            "elastic", "is for cifar-ray train; every run of a sweep keeps one topology, or its times mix"
        )
    for axes in sweep.grid:
        _check_axes(sweep, axes)
    _check_number(sweep)
    if sweep.search == "optuna":
        _check_proposing(sweep)
    everywhere = set.intersection(*(set(axes) for axes in sweep.grid))
    if twice := sorted(everywhere & set(schema.flatten(sweep.train))):
        raise ConfigError("grid", f"has {twice[0]}, which is given for all runs, too; give it once")
    names = {name for axes in sweep.grid for name in axes} | set(sweep.train)
    if sweep.hold == "batch" and "global_batch_size" in names:
        raise ConfigError("hold", "must be global_batch where global_batch_size is given")
    if sweep.held == "batch" and not all("batch_size" in {**sweep.train, **axes} for axes in sweep.grid):
        raise ConfigError(
            "grid", "must have batch_size where the batch per worker is held, unless all runs share one (--batch-size)"
        )
    if sweep.measure == "times" and sweep.train.get("gpus_per_worker", 1) < 1:
        raise ConfigError("measure", "must be all or accuracy where runs share a GPU: their times are each other's")
    limits.check(sweep)  # with what all runs share, which is checked even where no cell can be made


def _check_number(sweep: SweepConfig) -> None:
    """Refuse more runs than anyone means to train, before they are written out."""
    number = int(_combinations(sweep)) if sweep.samples is None else sweep.samples * len(sweep.grid)
    if number * sweep.seeds > MOST_RUNS:
        key = "seeds" if sweep.seeds > MOST_RUNS else "grid" if sweep.samples is None else "samples"
        raise ConfigError(key, f"must make at most {MOST_RUNS:,} runs in a sweep, not {number * sweep.seeds:,}")


def _check_proposing(sweep: SweepConfig) -> None:
    """Refuse what a search that goes from run to run cannot have."""
    if len(sweep.grid) > 1:
        raise ConfigError("grid", "must be one grid for --search optuna")
    if not any(map(_many, sweep.grid[0].values())):
        raise ConfigError("grid", "must have a field with several values or a range for --search optuna")
    if drawn := [name for name in runfile.OF_DATA if isinstance(sweep.grid[0].get(name), Range)]:
        raise ConfigError("grid", f"must list the values of {drawn[0]} for --search optuna: each is another data set")
    if sweep.seeds > 1:
        raise ConfigError("seeds", "must be 1 for --search optuna")


def _check_axes(sweep: SweepConfig, axes: Axes) -> None:
    if set(BATCHES) <= set(axes):
        raise ConfigError("grid", "must have batch_size or global_batch_size, not both in one grid")
    if "seed" in axes and sweep.seeds > 1:
        raise ConfigError("seeds", "must be 1 where seed is an axis")
    for name, values in axes.items():
        if name.partition(".")[0] in (*OWN, *runfile.KEPT, *limits.KEYS):
            raise ConfigError("grid", f"must not have {name}, which is the same for all runs of a sweep")
        if isinstance(values, Range):
            if sweep.search == "grid":
                raise ConfigError("grid", f"must list the values of {name}; ranges are for --search random and optuna")
            values.check(TrainConfig, name)
            continue
        if not values:
            raise ConfigError("grid", f"must have at least one value for {name}")
