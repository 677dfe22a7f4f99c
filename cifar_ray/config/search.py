"""How a sweep searches: the ranges that it draws from, and the options of its schedulers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from cifar_ray.config import errors, schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.schema import STRICT, Count, Number, Whole, plainly

SearchName = Literal["grid", "random", "optuna"]
SchedulerName = Literal["none", "asha", "median"]

Better = Literal["max", "min"]
"""Whether the highest value of a figure is the best, or the lowest."""

_KINDS: Mapping[str, Any] = {"uniform": float, "loguniform": float, "int": int}
"""Ways to draw a number between two others -> the type of field that they are for."""


def parse_objective(text: str) -> tuple[str, Better]:
    """``NAME:min`` or ``NAME:max`` as the figure's name, and which value is the best.

    Raises:
        ValueError: when it is neither.
    """
    name, _, better = text.rpartition(":")
    if not name or better not in ("min", "max"):
        raise ValueError(f"must be NAME:min or NAME:max, such as images_per_s:max, got {errors.brief(text)}")
    return name, cast(Better, better)


def _objective(text: str) -> str:
    parse_objective(text)
    return text


ObjectiveText = Annotated[str, AfterValidator(_objective)]


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers to draw from: with ``int``, whole ones from ``low`` to ``high``, both included."""

    kind: str
    low: float
    high: float

    @classmethod
    def read(cls, name: str, value: Mapping[str, Any]) -> Range:
        """The range of the field ``name``, from a mapping such as ``{"uniform": [0.1, 1]}``.

        Raises:
            ConfigError: when it has no two numbers.
        """
        ((kind, ends),) = value.items()
        if not isinstance(ends, list) or len(ends) != 2:
            raise ConfigError("grid", f"must have two numbers for the range of {name}, got {errors.brief(ends)}")
        low, high = (schema.build(Whole if kind == "int" else Number, end, name) for end in ends)
        return cls(str(kind), low, high)

    def check(self, cls: type, name: str) -> None:
        """Refuse a range that the field ``name`` of ``cls`` cannot take.

        Raises:
            ConfigError: naming the field, and what it may have.
        """
        wanted = schema.bare(schema.type_of(cls, name))
        if wanted not in (float, int, Any):
            raise ConfigError("grid", f"must list the values of {name}; only numbers have ranges")
        if wanted not in (_KINDS[self.kind], Any):
            ways = errors.one_of(f"{kind}:LOW:HIGH" for kind, of in _KINDS.items() if of is wanted)
            raise ConfigError("grid", f"must list the values of {name} or have a range of the form {ways}")
        for end in (self.low, self.high):
            schema.field(cls, name, end, strict=True)
        if self.kind == "loguniform" and self.low <= 0:
            raise ConfigError("grid", f"must have positive numbers in the loguniform range of {name}")
        if not self.low < self.high:
            raise ConfigError("grid", f"must have the lower number first in the range of {name}")


def is_range(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is a range, and no group of options."""
    return len(value) == 1 and next(iter(value)) in _KINDS


def spelled(values: Any) -> Any:
    """The mapping for a range in one word, such as ``loguniform:0.01:0.3``; all else as it is."""
    text = values[0] if isinstance(values, list) and len(values) == 1 else values
    kind, *ends = text.split(":") if isinstance(text, str) else [""]
    return {kind: ends} if kind in _KINDS and ends else values


@plainly
@dataclass(frozen=True, config=STRICT)
class Asha:
    """Only with ``--scheduler asha``."""

    grace: Count = 1
    """Epochs that every run trains before it may be stopped."""

    reduction: Annotated[Count, Field(ge=2)] = 4
    """Of the runs that come to a rung, about one in so many goes on; rungs are at the grace times its powers, in
    epochs."""


@plainly
@dataclass(frozen=True, config=STRICT)
class Median:
    """Only with ``--scheduler median``."""

    grace: Count = 1
    """Epochs that every run trains before it may be stopped."""

    min_trials: Count = 3
    """Other runs that must have come to an epoch before one is stopped there."""
