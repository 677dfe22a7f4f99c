"""What configurations are called in a table's rows, a chart's series and a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.tracking.study import Study

STRATEGY = "strategy"
_LONG = 6
"""Significant digits of a number beyond which it was drawn or computed, and is shortened in a name."""
_DIGITS = 3
_HASH = re.compile(r"[0-9a-f]{40,}")
_HASH_DIGITS = 8


def compared(among: Sequence[Configuration]) -> bool:
    """Whether they have more than one strategy."""
    return len({one.strategy for one in among} - {""}) > 1


@dataclass(frozen=True)
class Names:
    """Names that say what tells configurations apart, and nothing that they share.

    Attributes:
        strategies: whether the strategy does.
        batches: whether the batch size does: the global one, or the one per worker, whichever the study holds.
        devices: whether the device does.
        global_batch: whether the study holds the global batch.
        short: what long values are called, see :func:`shortened`.
    """

    strategies: bool
    batches: bool
    devices: bool
    global_batch: bool
    short: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, study: Study, among: Sequence[Configuration]) -> Names:
        """Names for these configurations of a study."""
        return cls(
            strategies=compared(among),
            batches=len({aggregate.column(study, one) for one in among}) > 1,
            devices=len({one.device for one in among if one.finished}) > 1,
            global_batch=study.hold == "global_batch",
            short=shortened(study),
        )

    def row(self, one: Configuration) -> str:
        """``ddp, 1x2, batch 64``."""
        return ", ".join([*self._strategy(one), one.topology, *self._rest(one)])

    def series(self, one: Configuration) -> str:
        """What it is called but for its topology, such as ``ddp, batch 64``; empty where nothing else differs."""
        return ", ".join([*self._strategy(one), *self._rest(one)])

    def words(self, one: Configuration) -> str:
        """``ddp on 1x2 with batch 64``, for a sentence."""
        rest = self._rest(one)
        return " on ".join([*self._strategy(one), one.topology]) + (f" with {', '.join(rest)}" if rest else "")

    def _strategy(self, one: Configuration) -> list[str]:
        return [one.strategy or "strategy not recorded"] if self.strategies else []

    def _rest(self, one: Configuration) -> list[str]:
        size = f"global batch {one.global_batch_size}" if self.global_batch else f"batch {one.batch_size}"
        others = [f"{name}={self.short.get((name, value), value)}" for name, value in one.others if name != STRATEGY]
        return [*([size] if self.batches else []), *others, *([one.device] if self.devices and one.device else [])]


def shortened(study: Study) -> Mapping[tuple[str, str], str]:
    """Name and value of a parameter -> what a long number or hash is called, in the digits that tell values apart."""
    names = {name for trial in study.trials for name in trial.params}
    values = {name: {trial.params[name] for trial in study.trials if name in trial.params} for name in names}
    return {(name, value): short for name in names for value, short in _short(values[name]).items()}


def _short(values: Collection[str]) -> Mapping[str, str]:
    """Those of the values that are long, with as few digits as leave all different."""
    numbers = [value for value in values if _long(value)]
    hashes = [value for value in values if _HASH.fullmatch(value)]
    found: dict[str, str] = {}
    for more in range(64):
        found = {value: f"{float(value):.{_DIGITS + more}g}" for value in numbers}
        found |= {value: value[: _HASH_DIGITS + more] for value in hashes}
        if len({found.get(value, value) for value in values}) == len(values):
            break
    return found


def _long(value: str) -> bool:
    """Whether a value is a number with a fraction and many digits."""
    matched = re.fullmatch(r"-?(\d+\.\d+|\d+)(e[+-]?\d+)?", value)
    return bool(matched and not value.isdigit() and len(matched[1].replace(".", "").strip("0")) > _LONG)


def title_of(every: Sequence[Configuration]) -> Callable[[Configuration], str]:
    """Names a configuration's model, with the data set and the device where they have several."""
    datasets, devices = {one.dataset for one in every}, {one.device for one in every if one.finished}

    def title(one: Configuration) -> str:
        named = one.model + (f" on {one.dataset}" if len(datasets) > 1 else "")
        return named + (f", {one.device}" if len(devices) > 1 and one.device else "")

    return title
