"""The cells of a sweep: every run that follows from its values."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cifar_ray.config import cell_names, schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.model import usual
from cifar_ray.config.option import choices, left_out
from cifar_ray.config.sections import Name
from cifar_ray.config.sweep import HELD, SweepConfig
from cifar_ray.config.train import TrainConfig


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: as a person reads it, such as ``bs16 2x2 seed1``; unlike that of any other.
        config: what it is, before the model's recipe is filled in; None when the values do not go together.
        values: the values that make it, by field.
        reason: why it cannot be, when ``config`` is None.
    """

    name: Name
    values: Mapping[str, Any]
    config: TrainConfig | None = None
    reason: str = ""


def cells(sweep: SweepConfig, chosen: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Every run of the sweep: the chosen combinations in their order with the first seed, then with the next.

    So the runs of a cell lie apart in time, and a slow hour affects all cells alike.

    Raises:
        ConfigError: when two cells are the same, or a value that all runs share is impossible.
    """
    first = sweep.train.get("seed", 0)
    rounds = itertools.product(range(sweep.seeds), chosen)
    settings = [{**_held(sweep, values), "seed": values.get("seed", first + turn)} for turn, values in rounds]
    names = cell_names.names(sweep, [merged(sweep, values) for values in settings])
    made = [_cell(sweep, name, values) for name, values in zip(names, settings, strict=True)]
    known: set[str] = set()
    for cell in made:
        values = cell.values if cell.config is None else schema.to_plain(cell.config)
        text = json.dumps(values, sort_keys=True)
        if text in known:
            raise ConfigError("grid", f"must not have the same cell twice; it has {cell.name!r} twice")
        known.add(text)
    return made


def proposed(sweep: SweepConfig, chosen: Mapping[str, Any], others: Sequence[Cell]) -> Cell | None:
    """One more run of a search, with the chosen combination of values; None when one of the others is the same."""
    values = {**_held(sweep, chosen), "seed": chosen.get("seed", sweep.train.get("seed", 0))}
    if any(values == other.values for other in others):
        return None
    taken = {other.name for other in others}
    names = (cell_names.names(sweep, [merged(sweep, values)], whole)[0] for whole in (False, True))
    return _cell(sweep, next(name for name in names if name not in taken), values)


def _cell(sweep: SweepConfig, name: str, values: dict[str, Any]) -> Cell:
    try:
        return Cell(name, values, config=_config(sweep, values))
    except ConfigError as error:
        return Cell(name, values, reason=str(error))


def _held(sweep: SweepConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """A combination with the batch by the name of what is held."""
    whole = merged(sweep, values)
    held = [name if name in whole else HELD[name] for name in values]
    return {name: whole[name] for name in held}


def merged(sweep: SweepConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's values on top of what all runs share, by dotted names, with the batch in the way that is held."""
    flat = {**schema.flatten(sweep.train), **values}
    if "global_batch_size" in values:  # the grid's choice replaces what all runs share
        flat.pop("batch_size", None)
    if sweep.held == "global_batch" and flat.get("batch_size") is not None:
        flat["global_batch_size"] = flat.pop("batch_size") * flat.get("accumulate", 1)
    return flat


def _config(sweep: SweepConfig, values: Mapping[str, Any]) -> TrainConfig:
    flat = merged(sweep, values)
    choice = {kind: flat.get(kind, getattr(TrainConfig, kind)) for kind in choices(TrainConfig)}
    model = flat.get("model", usual(choice["dataset"], flat.get("image_column")))
    others = left_out(TrainConfig, {**choice, "model": model})
    # What all runs share may be meant for the models and strategies of other cells.
    flat = {key: flat[key] for key in flat if key in values or key.partition(".")[0] not in others}
    return schema.build(TrainConfig, schema.nest(flat))
