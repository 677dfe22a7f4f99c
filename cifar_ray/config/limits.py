"""Limits of a run or of a sweep in time and money, and a run's patience."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from cifar_ray.config import errors
from cifar_ray.config.option import option
from cifar_ray.config.schema import Count, Positive, fits

_DURATION = TypeAdapter(timedelta)
_OF_SWEEP = "sweep_"
PATIENCE = "patience"


def seconds(text: str) -> float:
    """The seconds of a duration such as ``90s``, ``10m``, ``2h`` or ``1h30m``.

    Raises:
        ValueError: when it is none, or not more than zero.
    """
    with suppress(ValidationError):
        length = _DURATION.validate_python(f"PT{text.upper()}").total_seconds()  # as ISO 8601 writes it
        if length > 0:
            return length
    such = "must be a duration of more than zero, such as 90s, 10m, 2h or 1h30m"
    raise ValueError(f"{such}, got {errors.brief(text)}")


def duration(length_s: float) -> str:
    """``59 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    minutes, seconds = divmod(round(length_s), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def dollars(usd: float) -> str:
    """``3.07 USD``; below one, ``0.0412 USD``."""
    return f"{usd:,.2f} USD" if usd >= 1 else f"{usd:.4f} USD"


def cost(price: float, node_s: float) -> float:
    """US dollars for so many seconds, times nodes, at a price per node and hour."""
    return node_s / 3600 * price


_AS_TEXT = BeforeValidator(lambda value: repr(value) if isinstance(value, int | float) else value)
DurationText = Annotated[str, _AS_TEXT, fits(seconds)]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits in time, money and patience."""

    price: Positive | None = option(None, weights=False)
    """Price of a node in USD per hour, such as 2.49. The run then shows and records what it costs. Default: no cost is
    shown."""

    max_time: DurationText | None = option(None, weights=False)
    """Stop between two steps, with a checkpoint, after so long on the nodes over all attempts: 90s, 10m, 2h or 1h30m.
    Waiting for nodes does not count. Default: no limit."""

    max_cost: Positive | None = option(None, weights=False)
    """Stop as with --max-time after so many USD, at --price. Default: no limit."""

    patience: Count | None = option(None, weights=False)
    """Stop after so many epochs in a row without a better validation figure, of the images of --val-share. The run then
    ends as after its last epoch: it is tested, and its models are logged. Default: train all epochs."""


KEYS = tuple(field.name for field in dataclasses.fields(Limits))


def check(config: Any) -> None:
    """Refuse a limit on the cost without a price, of a run or of a sweep."""
    price = getattr(config, "base", config).price
    if config.max_cost is not None and price is None:
        raise errors.ConfigError("max_cost", "needs --price, the price of a node, such as 2.49 USD per hour")


def of_sweep(key: str) -> str:
    """What a run is said to be stopped by when that limit is the sweep's."""
    return _OF_SWEEP + key


def is_halted(stopped_by: str) -> bool:
    """Whether a run was stopped without a result. One that has run out of patience has one, as a whole run has."""
    return stopped_by not in ("", PATIENCE)


def is_of_sweep(stopped_by: str) -> bool:
    """Whether a run was stopped by a limit of its sweep, so that it goes on when the sweep does."""
    return stopped_by.startswith(_OF_SWEEP)


def named(stopped_by: str) -> str:
    """What has stopped a run, in words: ``--max-time``, or ``the sweep's --max-time``."""
    owner = "the sweep's " if is_of_sweep(stopped_by) else ""
    return owner + errors.flag_of(stopped_by.removeprefix(_OF_SWEEP))
