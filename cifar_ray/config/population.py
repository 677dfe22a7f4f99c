"""What the runs of a population may differ in, and explore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError, one_of
from cifar_ray.config.option import may_change
from cifar_ray.config.search import Range
from cifar_ray.config.train import TrainConfig

if TYPE_CHECKING:
    from cifar_ray.config.sweep import SweepConfig

_FLAG = "--scheduler pbt"


def explored(axes: Mapping[str, Any]) -> dict[str, Any]:
    """The axes whose values are explored: those of several values that may change within a run."""
    names = may_change(TrainConfig)
    return {name: of for name, of in axes.items() if name in names and (isinstance(of, Range) or len(of) > 1)}


def check(sweep: SweepConfig) -> None:
    """Refuse a sweep whose runs cannot take over from each other.

    Raises:
        ConfigError: naming the option, and what it may be.
    """
    if sweep.search == "optuna":
        raise ConfigError("search", f"must be grid or random for {_FLAG}: a population begins as a whole, got optuna")
    if len(sweep.grid) > 1:
        raise ConfigError("grid", f"must be one grid for {_FLAG}")
    if sweep.repeat:
        raise ConfigError("repeat", f"must be left out with {_FLAG}: values that changed on the way are no run's own")
    shared = schema.flatten(sweep.train)
    if shared.get("patience") is not None:
        raise ConfigError("patience", f"must be left out with {_FLAG}, where no run ends before the others")
    (axes,) = sweep.grid
    names = may_change(TrainConfig)
    for name, of in axes.items():
        if isinstance(of, Range) or len(of) > 1:
            if name not in (*names, "seed"):
                raise ConfigError(
                    "grid",
                    f"must have one value of {name} for {_FLAG}, which changes values within a run: "
                    f"{one_of(names)} may differ, and the seed",
                )
            if not isinstance(of, Range) and None in of:
                raise ConfigError("grid", f"must list numbers for {name} with {_FLAG}, got None")
    if not explored(axes):
        raise ConfigError("grid", f"must have several values or a range of {one_of(names)} for {_FLAG}")
    if sweep.samples == 1 and sweep.seeds == 1:
        raise ConfigError("samples", f"must be 2 or more for {_FLAG}")
