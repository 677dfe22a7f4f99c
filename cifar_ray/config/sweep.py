"""What one sweep is: the values that vary, what all of its runs share, its cells, and how it is written.

``SweepConfig`` is to a sweep what ``TrainConfig`` is to a run. Every combination of values is a *cell*; with
several seeds, every cell is trained once with each.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from cifar_ray.config import errors, limits, runfile, schema, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.limits import DurationText
from cifar_ray.config.option import check_choices, left_out, option
from cifar_ray.config.runfile import BATCHES
from cifar_ray.config.schema import NO_OTHERS, Count, Number, Positive, Whole, fits, plainly
from cifar_ray.config.sections import Measure, Name
from cifar_ray.config.train import TrainConfig

OWN = ("address", "local_nodes", "price", "data_dir", "tracking_uri", "storage", "verbose")
"""Fields of ``TrainConfig`` that are the same for all runs of a sweep, and so no axes."""

_MOST_RUNS = 10_000
_SHORT = {"batch_size": "bs", "global_batch_size": "gbs", "model": "", "dataset": "", "strategy": ""}
_DRAWN: Mapping[str, Any] = {"uniform": float, "loguniform": float, "int": int}  # kind of range -> type of the field


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers to draw from: with ``int``, whole ones from ``low`` to ``high``, both included."""

    kind: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.low!r}:{self.high!r}"


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


def _several(grid: Any) -> Any:
    """The grids that a single one, or the words of a command, stand for."""
    is_words = isinstance(grid, list) and grid and all(isinstance(word, str) for word in grid)
    return [axes(grid)] if is_words else [grid] if isinstance(grid, Mapping) else grid


def parse_objective(text: str) -> tuple[str, Any]:
    """The figure of ``NAME:min`` or ``NAME:max``, and ``min`` or ``max``; a ValueError says what may stand there."""
    match = re.fullmatch("(.+):(max|min)", text)
    if match is None:
        raise ValueError(f"must be NAME:min or NAME:max, such as images_per_s:max, got {errors.brief(text)}")
    return match[1], match[2]


def _typed(grids: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Grids by dotted field name, with the fields' own types: a value is a list of one, ``uniform:0:1`` a Range."""
    return tuple({name: _values(name, values) for name, values in _fields("grid", axes).items()} for axes in grids)


def _values(name: str, values: Any) -> Range | list[Any]:
    if isinstance(values, Range):
        return values
    text = values[0] if isinstance(values, list) and len(values) == 1 else values
    kind, *ends = text.split(":") if isinstance(text, str) else [""]
    if kind in _DRAWN and ends:
        if len(ends) != 2:
            raise ConfigError("grid", f"must have two numbers for the range of {name}, got {errors.brief(text)}")
        return Range(kind, *(schema.build(Whole if kind == "int" else Number, end, name) for end in ends))
    is_list = schema.is_list(schema.type_of(TrainConfig, name))  # whose one value is a list, too
    if not isinstance(values, list) or (is_list and not any(isinstance(item, list | tuple) for item in values)):
        values = [values]
    return [schema.field(TrainConfig, name, item) for item in values]


def _differing(value: Any) -> Any:
    """The options of a ``TrainConfig`` that differ from the defaults; any other value as it is."""
    if not isinstance(value, TrainConfig):
        return value
    usual, given = schema.to_plain(TrainConfig()), schema.to_plain(value)
    if value.batch_size is not None:  # from which the other follows
        del given["global_batch_size"]
    return {name: item for name, item in given.items() if item != usual[name]}


def _shared(values: Mapping[str, Any]) -> dict[str, Any]:
    """What all runs share, with the fields' own types."""
    flat = _fields("train", values)
    return schema.nest({name: schema.field(TrainConfig, name, item) for name, item in flat.items()})


def _fields(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the dotted names of a run's fields; what is no such field is refused, naming ``key``."""
    flat = schema.flatten(values)
    for name in flat:
        if schema.type_of(TrainConfig, name) is None:
            near = errors.suggestion(name, schema.field_types(TrainConfig))
            raise ConfigError(key, f"has {errors.brief(name)}, which is no field of a run{near}")
    return flat


@plainly
@dataclass(frozen=True, config=NO_OTHERS)
class SweepConfig:
    """Train every combination of values, and record all runs under one parent."""

    name: Name = field(default_factory=functools.partial(time.strftime, "sweep-%Y%m%d-%H%M%S"))
    """Name of the sweep, new in its storage folder. Default: one made from the time."""

    grid: Annotated[tuple[dict[str, Any], ...], BeforeValidator(_several), AfterValidator(_typed)] = ()
    """FIELD=VALUE,VALUE ...: fields of a run and the values they take, in place of the file's: one grid of them, or
    several. For a search also ranges to draw from: FIELD=uniform:LOW:HIGH, loguniform:LOW:HIGH and int:LOW:HIGH."""

    train: Annotated[dict[str, Any], BeforeValidator(_differing), AfterValidator(_shared)] = field(default_factory=dict)
    """Fields of a run that all runs share, or a TrainConfig, of which fields that differ from their default count."""

    seeds: Count = 1
    """Runs per combination, with seeds counting up from the runs' own."""

    measure: Measure = "all"
    """What reports may use: 'accuracy' (ignore times, the machine was busy), 'times' (ignore accuracy, runs of a few
    steps), or all."""

    search: Literal["grid", "random", "optuna"] = "grid"
    """Train every combination, or --samples of them: 'random' ones, or those that Optuna proposes one after another
    (TPE), knowing how the earlier ones came out."""

    samples: Count | None = None
    """Combinations to draw from each grid in a random search, or to train in one with Optuna."""

    scheduler: Literal["none", "asha"] = "none"
    """Stop runs early: 'asha' those whose validation figure, such as the accuracy, falls behind the best at some
    epochs."""

    asha_grace: Count = option(1, weights=False, only={"scheduler": ("asha",)})
    """Epochs that every run trains before ASHA may stop it."""

    asha_reduction: Annotated[Count, Field(ge=2)] = option(4, weights=False, only={"scheduler": ("asha",)})
    """Of the runs that come to a rung of ASHA, about one in so many goes on; rungs are at the grace times its powers,
    in epochs."""

    objective: Annotated[str, fits(parse_objective)] | None = None
    """NAME:min or NAME:max, the figure that a scheduler and Optuna go by and that names the best run, such as
    val/f1:max or images_per_s:max. Default: the task's main figure on the validation images, such as the accuracy."""

    repeat: Whole = 0
    """Other seeds with which the best run of a search is trained again, before it is called ahead."""

    skip_infeasible: bool = False
    """Skip combinations that cannot run here, instead of refusing the sweep."""

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

    @cached_property
    def held(self) -> Literal["batch", "global_batch"]:
        """What stays when the number of workers changes: the batch per worker where that alone is named.

        Else it is the global batch. What the grids name replaces what all runs share.
        """
        of_grids = {name for axes in self.grid for name in axes} & {*BATCHES}
        return "batch" if (of_grids or self.train.keys() & {*BATCHES}) == {"batch_size"} else "global_batch"

    @property
    def is_search(self) -> bool:
        """Whether it is after its best run, and not after a table of all."""
        return (self.search, self.scheduler, self.objective) != ("grid", "none", None)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The fields that tell the cells apart, in the order of the grids."""
        fields = dict.fromkeys(name for axes in self.grid for name in axes)
        return tuple(
            name
            for name in fields
            if len({repr(axes.get(name)) for axes in self.grid}) > 1
            or any(_has_several(axes.get(name)) for axes in self.grid)
        )

    @cached_property
    def combinations(self) -> tuple[dict[str, Any], ...]:
        """Every combination of the grids' values, in their order; a random search draws some of them elsewhere."""
        return tuple(
            dict(zip(axes, values, strict=True)) for axes in self.grid for values in itertools.product(*axes.values())
        )

    @cached_property
    def base(self) -> TrainConfig:
        """What is the same for all runs: where they run and are recorded."""
        return schema.build(TrainConfig, {name: value for name, value in self.train.items() if name in OWN})


def _has_several(values: Any) -> bool:
    return isinstance(values, Range) or (values is not None and len(values) > 1)


def _check(sweep: SweepConfig) -> None:
    if (sweep.search != "grid") != (sweep.samples is not None):
        raise ConfigError("samples", "must be given for --search random and optuna, and for nothing else")
    if sweep.repeat and not sweep.is_search:
        raise ConfigError("repeat", "is for a search: --search random or optuna, a --scheduler or an --objective")
    if not any(sweep.grid):
        raise ConfigError("grid", "must name at least one field with its values, such as batch_size=16,64")
    names = {name for axes in sweep.grid for name in axes}
    for name in ("run_name", "elastic"):
        if name in names or name in sweep.train:
            raise ConfigError(name, "is for cifar-ray train alone, and not for the runs of a sweep")
    if names.issuperset(BATCHES):
        raise ConfigError("grid", "must have batch_size or global_batch_size, not both")
    if sweep.seeds > 1 and ("seed" in names or sweep.search == "optuna"):
        raise ConfigError("seeds", "must be 1 for --search optuna, and where seed is an axis")
    for axes in sweep.grid:
        for name, values in axes.items():
            _check_axis(sweep, name, values)
    sizes = [sweep.samples or math.prod(map(len, axes.values())) for axes in sweep.grid]
    if (number := sweep.seeds * sum(sizes)) > _MOST_RUNS:
        raise ConfigError("grid", f"must make at most {_MOST_RUNS:,} runs, with --seeds or --samples, not {number:,}")
    if sweep.search == "optuna":
        if len(sweep.grid) > 1 or not any(map(_has_several, sweep.grid[0].values())):
            raise ConfigError("grid", "must be one grid for --search optuna, with several values or a range of a field")
        if drawn := [name for name in runfile.OF_DATA if isinstance(sweep.grid[0].get(name), Range)]:
            raise ConfigError("grid", f"must list the values of {drawn[0]}: each is another data set")
    everywhere = set.intersection(*(set(axes) for axes in sweep.grid))
    if twice := sorted(everywhere & set(schema.flatten(sweep.train))):
        raise ConfigError("grid", f"has {twice[0]}, which is given for all runs, too; give it once")
    if sweep.held == "batch" and not all("batch_size" in {**sweep.train, **axes} for axes in sweep.grid):
        raise ConfigError("grid", "must have batch_size in every grid, or global_batch_size in its place")
    if sweep.measure == "times" and sweep.train.get("gpus_per_worker", 1) < 1:
        raise ConfigError("measure", "must be all or accuracy where runs share a GPU: their times are each other's")
    limits.check(sweep)  # with what all runs share, which is checked even where no cell can be made


def _check_axis(sweep: SweepConfig, name: str, values: Any) -> None:
    if name.partition(".")[0] in (*OWN, *runfile.KEPT, *limits.KEYS):
        raise ConfigError("grid", f"must not have {name}, which is the same for all runs of a sweep")
    if not isinstance(values, Range):
        if not values:
            raise ConfigError("grid", f"must have at least one value for {name}")
        return
    if sweep.search == "grid":
        raise ConfigError("grid", f"must list the values of {name}; ranges are for --search random and optuna")
    if schema.bare(schema.type_of(TrainConfig, name)) not in (_DRAWN[values.kind], Any):
        rule = "int:LOW:HIGH is for whole numbers, uniform and loguniform for others"
        raise ConfigError("grid", f"must list the values of {name}, or have a range of their kind: {rule}")
    for end in (values.low, values.high):
        schema.field(TrainConfig, name, end)
    if not values.low < values.high or (values.kind == "loguniform" and values.low <= 0):
        rule = "the lower number first, and positive ones for loguniform"
        raise ConfigError("grid", f"must have {rule}, in the range of {name}, got {values}")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: Name  # as a person reads it, such as ``bs16 2x2 seed1``; unlike that of any other
    values: Mapping[str, Any]  # the values that make it, by field
    # what it is, before the model's recipe is filled in; None when the values do not go together
    config: TrainConfig | None = None
    reason: str = ""  # why it cannot be, when ``config`` is None


def cells(sweep: SweepConfig, chosen: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Every run of the sweep: the chosen combinations in their order with the first seed, then with the next.

    So the runs of a combination lie apart in time, and a slow hour affects all combinations alike.

    Raises:
        ConfigError: when two cells are the same.
    """
    settings = [_with_seed(sweep, values, turn) for turn in range(sweep.seeds) for values in chosen]
    made = [_cell(sweep, *named) for named in zip(_names(sweep, settings), settings, strict=True)]
    first: dict[str, str] = {}
    for cell in made:
        of = json.dumps(schema.to_plain(cell.config) if cell.config else cell.values, sort_keys=True)
        if first.setdefault(of, cell.name) is not cell.name:
            raise ConfigError("grid", f"must not have the same combination twice; it has {cell.name!r} twice")
    return made


def proposed(sweep: SweepConfig, chosen: Mapping[str, Any], others: Sequence[Cell]) -> Cell | None:
    """One more run of a search, with the chosen combination of values; None when one of the others is the same."""
    values, taken = _with_seed(sweep, chosen), {other.name for other in others}
    if any(values == other.values for other in others):
        return None
    names = (_names(sweep, [values], whole)[0] for whole in (False, True))
    return _cell(sweep, next(name for name in names if name not in taken), values)


def merged(sweep: SweepConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's values on top of what all runs share, by dotted names."""
    return schema.flatten(runfile.merge(sweep.train, values))


def _with_seed(sweep: SweepConfig, values: Mapping[str, Any], turn: int = 0) -> dict[str, Any]:
    return {**values, "seed": values.get("seed", sweep.train.get("seed", 0) + turn)}


def _cell(sweep: SweepConfig, name: str, values: dict[str, Any]) -> Cell:
    flat = merged(sweep, values)
    others = left_out(TrainConfig, flat)
    # What all runs share may be meant for the data sets and optimizers of other cells.
    flat = {key: flat[key] for key in flat if key in values or key.partition(".")[0] not in others}
    try:
        return Cell(name, values, config=schema.build(TrainConfig, schema.nest(flat)))
    except ConfigError as error:
        return Cell(name, values, reason=str(error))


def _names(sweep: SweepConfig, settings: Sequence[Mapping[str, Any]], whole: bool = False) -> list[str]:
    """A name for each of some runs, by their values: the model, data set and strategy first, the usual ones last.

    ``whole``: no number is rounded and no path cut, even where that tells these runs apart.
    """
    order: list[str] = [name for name in ("model", "dataset", "strategy") if name in sweep.axes]
    order += [name for name in sweep.axes if name not in (*order, *BATCHES, "topology", "seed")]
    names = []
    for values in (merged(sweep, setting) for setting in settings):
        known = [name for name in (*order, *BATCHES) if values.get(name) is not None]
        parts = [_label(name, values[name], whole) for name in known]
        names.append(" ".join([*parts, values.get("topology", TrainConfig.topology), f"seed{values['seed']}"]))
    return names if whole or len(set(names)) == len(names) else _names(sweep, settings, whole=True)


def _label(name: str, value: Any, whole: bool) -> str:
    text = f"{value:.3g}" if isinstance(value, float) and not whole else str(value)
    if isinstance(value, tuple):
        text = "+".join(map(str, value))
    if name in ("dataset", "weights") and not whole:  # of a path, its name
        text = text.rpartition("/")[2]
    mark = "-" if isinstance(value, str) else ""
    return _SHORT.get(name, name.rsplit(".", 1)[-1].replace("_", "-") + mark) + text.replace("e+", "e")


def from_mapping(values: Mapping[str, Any]) -> SweepConfig:
    """A sweep from plain values."""
    return schema.build(SweepConfig, values)


def to_yaml(sweep: SweepConfig) -> str:
    """The sweep as a YAML file that makes the same runs again."""
    values: dict[str, Any] = {"version": runfile.VERSION, **schema.to_plain(sweep)}
    values["grid"] = [
        {name: str(item) if isinstance(item, Range) else schema.plain(item) for name, item in axes.items()}
        for axes in sweep.grid
    ]
    return yaml.dump(values)
