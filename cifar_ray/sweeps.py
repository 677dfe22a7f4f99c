"""What one sweep is: the values that vary, and the runs that follow from them.

``SweepConfig`` is to a sweep what ``TrainConfig`` is to a run. Every combination of values is a *cell*; with
several seeds, every cell is trained once with each.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cifar_ray import strict
from cifar_ray.config import MODEL_OPTIONS, NAME, TrainConfig
from cifar_ray.strict import ConfigError

SWEEP_VERSION = 1
"""The version of the YAML files written here. It changes when an old file would mean something else."""

OWN = ("address", "local_nodes", "oversubscribe", "data_dir", "experiment", "tracking_uri", "storage", "verbose")
"""Fields of ``TrainConfig`` that are the same for all runs of a sweep, and so no axes."""

RANGES = ("uniform", "loguniform")
"""Ways to draw a number between two others."""

_SHORT = {"batch_size": "bs", "global_batch_size": "gbs", "topology": "", "model": "", "dataset": "", "strategy": ""}
_BATCHES = ("batch_size", "global_batch_size")
_USUAL = (*_SHORT, "seed")


@dataclass(frozen=True)
class Range:
    """Numbers to draw from, for a random search."""

    kind: str
    low: float
    high: float


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: as a person reads it, such as ``bs16 2x2 seed1``; unlike that of any other.
        config: what it is, before the model's recipe is filled in; None when the values do not go together.
        values: the values that make it, by field.
        reason: why it cannot be, when ``config`` is None.
    """

    name: str
    values: Mapping[str, Any]
    config: TrainConfig | None = None
    reason: str = ""


Axes = Mapping[str, Any]
"""Field -> a list of values, a :class:`Range`, or one value for all cells of this grid."""


@dataclass(frozen=True)
class SweepConfig:
    """Train every combination of values, and record all runs under one parent."""

    name: str
    """Name of the sweep, new in its storage folder."""

    grid: tuple[Axes, ...] = ()
    """One or several grids; each maps fields of a run to the values they take."""

    train: Mapping[str, Any] = field(default_factory=dict)
    """What all runs share: any fields of a run."""

    seeds: int = 1
    """Runs of every cell, with seeds counting up from the runs' own."""

    hold: Literal["batch", "global_batch"] | None = None
    """What stays when the workers change: 'batch' per worker, so that the global batch grows with them, or
    'global_batch', for which batch_size is that of a single worker. When not given: what the grid names."""

    search: Literal["grid", "random"] = "grid"
    """Every combination, or --samples combinations drawn at random."""

    samples: int | None = None
    """Combinations to draw from each grid in a random search."""

    scheduler: Literal["none", "asha"] = "none"
    """'asha' stops runs early whose test accuracy falls behind that of the others."""

    skip_infeasible: bool = False
    """Leave out cells that cannot run here, instead of refusing the sweep."""

    max_concurrent: int | None = None
    """Most runs at once; as many as the cluster holds when not given."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def held(self) -> str:
        """``hold``, decided."""
        if self.hold is not None:
            return self.hold
        given = {name for axes in self.grid for name in axes} | set(self.train)
        return "global_batch" if "global_batch_size" in given else "batch"

    @property
    def axes(self) -> tuple[str, ...]:
        """The fields that tell the cells apart, in the order of the grids.

        What only follows from the grid, such as each model's own epochs, is left out unless it is needed.
        """
        fields = list(dict.fromkeys(name for axes in self.grid for name in axes))
        varying = [name for name in fields if self._varies(name)]
        chosen = [name for name in varying if name in _USUAL or any(_many(axes.get(name)) for axes in self.grid)]
        if any(isinstance(values, Range) for axes in self.grid for values in axes.values()):
            return tuple(varying)
        made = combinations(self)
        told = {tuple(repr(values.get(name)) for name in chosen) for values in made}
        return tuple(chosen if len(told) == len(made) else varying)

    def _varies(self, name: str) -> bool:
        lists = [listed(axes[name]) for axes in self.grid if name in axes]
        values = {repr(value) for values in lists for value in values}
        return len(values) > 1 or len(lists) < len(self.grid) or any(_many(axes.get(name)) for axes in self.grid)

    @property
    def base(self) -> TrainConfig:
        """What is the same for all runs: where they run and are recorded."""
        own = {name: value for name, value in self.train.items() if name in OWN}
        return strict.build(TrainConfig, own)


def combinations(sweep: SweepConfig) -> list[dict[str, Any]]:
    """Every combination of the grids' values, in their order; a random search draws some of them elsewhere."""
    return [
        dict(zip(axes, values, strict=True))
        for axes in sweep.grid
        for values in itertools.product(*(listed(value) for value in axes.values()))
    ]


def listed(values: Any) -> list[Any]:
    """The values of an axis; a single one is a list of one."""
    return list(values) if isinstance(values, list | tuple) else [values]


def _many(values: Any) -> bool:
    """Whether an axis takes several values."""
    return isinstance(values, Range) or (isinstance(values, list) and len(values) > 1)


def cells(sweep: SweepConfig, chosen: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Every run of the sweep: the chosen combinations in their order, each with its seeds in turn.

    Raises:
        ConfigError: when two cells are the same, or a value that all runs share is impossible.
    """
    first = strict.convert("seed", sweep.train.get("seed", 0), int)
    settings = []
    for values in chosen:
        seeds = [values["seed"]] if "seed" in values else range(first, first + sweep.seeds)
        settings += [{**values, "seed": seed} for seed in seeds]
    names = _names(sweep, settings)
    made = [_cell(sweep, name, values) for name, values in zip(names, settings, strict=True)]
    for position, cell in enumerate(made):
        twin = next((other for other in made[:position] if _same(other, cell)), None)
        if twin is not None:
            raise ConfigError("grid", f"must not have the same cell twice; it has {cell.name!r} twice")
    return made


def _same(one: Cell, other: Cell) -> bool:
    return one.values == other.values if one.config is None else one.config == other.config


def _cell(sweep: SweepConfig, name: str, values: dict[str, Any]) -> Cell:
    """The run with these values, or why there is none."""
    try:
        return Cell(name, values, config=_config(sweep, values))
    except ConfigError as error:
        return Cell(name, values, reason=str(error))


def _config(sweep: SweepConfig, values: Mapping[str, Any]) -> TrainConfig:
    flat = {**strict.flatten(sweep.train), **values}
    if "global_batch_size" in values:  # the grid's choice replaces what all runs share
        flat.pop("batch_size", None)
    elif "batch_size" in values:
        flat.pop("global_batch_size", None)
    model = flat.get("model", TrainConfig.model)
    for other, group in MODEL_OPTIONS.items():
        if other != model:  # options of a model that other cells train
            flat = {key: value for key, value in flat.items() if not key.startswith(f"{group}.")}
    if sweep.held == "global_batch" and flat.get("batch_size") is not None:
        flat["global_batch_size"] = flat.pop("batch_size") * flat.get("accumulate", 1)
    return strict.build(TrainConfig, strict.nest(flat))


def _names(sweep: SweepConfig, settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for every run: the values that tell it from the others, the usual ones first."""
    merged = [{**strict.flatten(sweep.train), **values} for values in settings]
    batch = "global_batch_size" if sweep.held == "global_batch" else "batch_size"
    order: list[str] = [name for name in ("model", "dataset", "strategy") if name in sweep.axes]
    order += [name for name in sweep.axes if name not in (*order, *_BATCHES, "topology", "seed")]

    def named(whole: bool) -> list[str]:
        names = []
        for values in merged:
            parts = [_label(name, values[name], whole) for name in order if values.get(name) is not None]
            size = values.get(batch, values.get("batch_size", values.get("global_batch_size")))
            parts += [_label(batch, size, whole)] if size is not None else []
            parts += [str(values.get("topology", TrainConfig.topology)), f"seed{values['seed']}"]
            names.append(" ".join(parts))
        return names

    short = named(whole=False)
    return short if len(set(short)) == len(short) else named(whole=True)


def _label(name: str, value: Any, whole: bool) -> str:
    text = f"{value:.3g}" if isinstance(value, float) and not whole else str(value)
    text = text.replace("e+", "e")
    return _SHORT.get(name, name.rsplit(".", 1)[-1].replace("_", "-")) + text


def _check(sweep: SweepConfig) -> None:
    """Refuse impossible sweeps, each in a sentence that names the field and what it may be."""
    import re

    if not re.fullmatch(NAME, sweep.name):
        raise ConfigError("name", f"must be 1 to 120 letters, digits, '.', '_' or '-', got {sweep.name!r}")
    for key, least in (("seeds", 1), ("samples", 1), ("max_concurrent", 1)):
        value = getattr(sweep, key)
        if value is not None and value < least:
            raise ConfigError(key, f"must be at least {least}, got {value}")
    if (sweep.search == "random") != (sweep.samples is not None):
        raise ConfigError("samples", "must be given for --search random, and for nothing else")
    if not sweep.grid or not any(sweep.grid):
        raise ConfigError("grid", "must name at least one field with its values, such as batch_size=16,64")
    for key in strict.flatten(sweep.train):
        _check_field("train", key)
    if "run_name" in sweep.train:
        raise ConfigError("train", "must not have run_name; runs are named after their cells")
    for axes in sweep.grid:
        _check_axes(sweep, axes)
    given = {name for axes in sweep.grid for name in axes} | set(sweep.train)
    if sweep.hold == "batch" and "global_batch_size" in given:
        raise ConfigError("hold", "must be global_batch where global_batch_size is given")
    _ = sweep.base  # what all runs share is checked even where no cell can be made


def _check_axes(sweep: SweepConfig, axes: Axes) -> None:
    kinds = strict.flat_types(TrainConfig)
    if set(_BATCHES) <= set(axes):
        raise ConfigError("grid", "must have batch_size or global_batch_size, not both in one grid")
    if "seed" in axes and sweep.seeds > 1:
        raise ConfigError("seeds", "must be 1 where seed is an axis")
    for name, values in axes.items():
        _check_field("grid", name)
        if name in OWN or name == "run_name":
            raise ConfigError("grid", f"must not have {name}, which is the same for all runs of a sweep")
        if isinstance(values, Range):
            if sweep.search != "random":
                raise ConfigError("grid", f"must list the values of {name}; ranges are for --search random")
            if kinds[name] not in (float, float | None) or not 0 < values.low < values.high:
                raise ConfigError("grid", f"must have a range of positive numbers for {name}, the lower one first")
            continue
        if not listed(values):
            raise ConfigError("grid", f"must have at least one value for {name}")
        for value in listed(values):
            strict.check(name, value, kinds[name])


def _check_field(key: str, name: str) -> None:
    known = strict.flat_types(TrainConfig)
    if name not in known:
        raise ConfigError(key, f"has {name!r}, which is no field of a run{strict.suggestion(name, known)}")


def load(path: str | Path) -> dict[str, Any]:
    """The values in a YAML file, for :func:`from_mapping` when flags have been put on top of them.

    Raises:
        ConfigError: when it cannot be read, or was written by another version. The sentence names the file.
    """
    values = strict.read_yaml(path)
    version = values.pop("version", SWEEP_VERSION)
    if version != SWEEP_VERSION:
        raise ConfigError("", f"{path}: version must be {SWEEP_VERSION}, got {version!r}")
    return values


_OF_SWEEP = ("name", "seeds", "hold", "search", "samples", "scheduler", "skip_infeasible", "max_concurrent")


def merge(base: Mapping[str, Any], flags: Mapping[str, Any], file: str | None) -> dict[str, Any]:
    """The values of a file with flags on top: options of the sweep by their names, all others shared by its runs.

    Args:
        base: what :func:`load` has read.
        flags: option -> its words; ``grid`` has the words of :func:`read_axes`.
        file: where ``base`` was read; the sweep is named after it when it has no name.

    Raises:
        ConfigError: when an axis is not understood.
    """
    flags = dict(flags)
    merged = dict(base)
    if "grid" in flags:
        merged["grid"] = read_axes(flags.pop("grid").split())
    merged |= {key: flags.pop(key) for key in _OF_SWEEP if key in flags}
    if file is not None:
        merged.setdefault("name", Path(file).stem)
    shared = merged.get("train") or {}
    if not isinstance(shared, Mapping):
        raise ConfigError("train", f"must be a mapping of fields to values, got {shared!r}")
    shared = strict.flatten(shared)
    flat = strict.flatten(flags)
    for given, other in (_BATCHES, _BATCHES[::-1]):
        if given in flat and other not in flat:  # the one given last counts
            shared.pop(other, None)
    merged["train"] = strict.nest({**shared, **flat})
    return merged


def from_mapping(values: Mapping[str, Any]) -> SweepConfig:
    """A sweep from plain values.

    Raises:
        ConfigError: on an unknown key, a wrong type or an impossible value.
    """
    values = dict(values)
    grids = values.pop("grid", {})
    shared = values.pop("train", {})
    grids = [grids] if isinstance(grids, Mapping) else grids
    if not isinstance(grids, list) or not all(isinstance(axes, Mapping) for axes in grids):
        raise ConfigError("grid", f"must be a mapping of fields to lists of values, or a list of such, got {grids!r}")
    if not isinstance(shared, Mapping):
        raise ConfigError("train", f"must be a mapping of fields to values, got {shared!r}")
    if "name" not in values:
        raise ConfigError("name", "must be given")
    kinds = {name: kind for name, kind in strict.field_types(SweepConfig).items() if name not in ("grid", "train")}
    plain = {}
    for key, value in values.items():
        if key not in kinds:
            raise ConfigError("", f"unknown key '{key}'{strict.suggestion(str(key), [*kinds, 'grid', 'train'])}")
        plain[key] = strict.convert(key, value, kinds[key])
    return SweepConfig(grid=tuple(_axes(axes) for axes in grids), train=_typed(shared), **plain)


def _axes(axes: Mapping[str, Any]) -> Axes:
    """One grid with the values' own types."""
    known = strict.flat_types(TrainConfig)
    made: dict[str, Any] = {}
    for name, values in _flat(axes).items():
        _check_field("grid", name)
        kind = known[name]
        if isinstance(values, Range):
            made[name] = values
        elif isinstance(values, list) and not (_is_tuple(kind) and not any(isinstance(v, list) for v in values)):
            made[name] = [strict.convert(name, value, kind) for value in values]
        else:
            made[name] = [strict.convert(name, values, kind)]
    return made


def _flat(axes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One grid with dotted names, and ``{uniform: [0, 1]}`` as a :class:`Range`."""
    flat: dict[str, Any] = {}
    for name, values in axes.items():
        key = f"{prefix}{name}"
        if isinstance(values, Mapping) and len(values) == 1 and next(iter(values)) in RANGES:
            kind, ends = next(iter(values.items()))
            if not isinstance(ends, list) or len(ends) != 2:
                raise ConfigError("grid", f"must have two numbers for the range of {key}, got {ends!r}")
            low, high = (strict.convert(key, end, float) for end in ends)
            flat[key] = Range(str(kind), low, high)
        elif isinstance(values, Mapping):
            flat.update(_flat(values, f"{key}."))
        else:
            flat[key] = values
    return flat


def _is_tuple(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def _typed(shared: Mapping[str, Any]) -> dict[str, Any]:
    """What all runs share, with the fields' own types."""
    known = strict.flat_types(TrainConfig)
    flat = strict.flatten(shared)
    for name in flat:
        _check_field("train", name)
    return strict.nest({name: strict.convert(name, value, known[name]) for name, value in flat.items()})


def read_axes(words: Sequence[str]) -> dict[str, Any]:
    """``batch_size=16,64 topology=1x1,1x2 lr=loguniform:0.01:0.3`` as one grid.

    Raises:
        ConfigError: when a word has no ``=``, or a field comes twice.
    """
    axes: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError("grid", f"must be FIELD=VALUE,VALUE ..., got {word!r}")
        if name in axes:
            raise ConfigError("grid", f"must name every field once, and {name} comes twice")
        kind, *ends = text.split(":")
        if kind in RANGES and ends:
            axes[name] = {kind: ends}
        else:
            axes[name] = [value for value in text.split(",") if value]
    return axes


def to_yaml(sweep: SweepConfig) -> str:
    """The sweep as a YAML file that makes the same runs again."""
    import yaml

    values: dict[str, Any] = {"version": SWEEP_VERSION, **dataclasses.asdict(sweep)}
    values["grid"] = [
        {
            name: {item.kind: [item.low, item.high]} if isinstance(item, Range) else _plain(item)
            for name, item in axes.items()
        }
        for axes in sweep.grid
    ]
    values["train"] = _plain(sweep.train)
    return yaml.safe_dump(values, sort_keys=False)


def _plain(value: Any) -> Any:
    """Tuples as lists, which is what YAML has."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
