"""What configurations are called in a table's rows, a chart's series and a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cifar_ray.reporting.frame import Configuration
from cifar_ray.tracking.study import Sweep

STRATEGY = "strategy"
_LONG = re.compile(r"-?[0.]*(\d\.?){7,}(e[+-]?\d+)?")  # a number that was drawn or computed
_HASH = re.compile(r"[0-9a-f]{40,}")


def compared(among: Sequence[Configuration]) -> bool:
    """Whether they have more than one strategy."""
    return len({config.strategy for config in among} - {""}) > 1


@dataclass(frozen=True)
class Names:
    """Names that say what tells configurations apart, and nothing that they share.

    The first three fields say whether strategies, the batch sizes that the study holds, and devices do; ``short`` has
    what a parameter's value is called.
    """

    strategies: bool
    batches: bool
    devices: bool
    short: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, among: Sequence[Configuration]) -> Names:
        """Names for these configurations of a study."""
        return cls(
            strategies=compared(among),
            batches=len({config.column for config in among}) > 1,
            devices=len({config.device for config in among if config.finished}) > 1,
            short=_shortened(among[0].runs.study) if among else {},
        )

    def row(self, config: Configuration) -> str:
        """``ddp, 1x2, batch 64``."""
        return ", ".join([*self._strategy(config), config.topology, *self._rest(config)])

    def series(self, config: Configuration) -> str:
        """What it is called but for its topology, such as ``ddp, batch 64``; empty where nothing else differs."""
        return ", ".join([*self._strategy(config), *self._rest(config)])

    def words(self, config: Configuration) -> str:
        """``ddp on 1x2 with batch 64``, for a sentence."""
        rest = self._rest(config)
        return " on ".join([*self._strategy(config), config.topology]) + (f" with {', '.join(rest)}" if rest else "")

    def _strategy(self, config: Configuration) -> list[str]:
        return [config.strategy or "strategy not recorded"] if self.strategies else []

    def _rest(self, config: Configuration) -> list[str]:
        held = config.runs.study.hold == "global_batch"
        size = [f"{'global ' * held}batch {config.column}"] if self.batches else []
        others = [
            f"{_called(name, config)}={self.short.get((name, value), value)}"
            for name, value in config.others
            if name != STRATEGY
        ]
        return [*size, *others, *([config.device] if self.devices and config.device else [])]


def _called(name: str, config: Configuration) -> str:
    """A parameter in a name: an option of a model or strategy without its group, unless another one is called that."""
    option = name.rpartition("_options.")[2]
    return name if option in config.trials[0].params else option


def _shortened(study: Sweep) -> Mapping[tuple[str, str], str]:
    """Name and value of a parameter -> the value in the digits that tell a parameter's long numbers or hashes apart."""
    short: dict[tuple[str, str], str] = {}
    for name in {name for trial in study.trials for name in trial.params}:
        values = {trial.params[name] for trial in study.trials if name in trial.params}
        for digits in range(3, 64):
            names = {value: _short(value, digits) for value in values}
            if len({*names.values()}) == len(values):
                short |= {(name, value): shown for value, shown in names.items()}
                break
    return short


def _short(value: str, digits: int) -> str:
    if _HASH.fullmatch(value):
        return value[: digits + 5]
    is_long = _LONG.fullmatch(value) and not value.isdigit()
    return f"{float(value):.{digits}g}" if is_long else value


def titled(
    every: Sequence[Configuration], shown: Callable[[Configuration], object] | None = None
) -> dict[str, list[Configuration]]:
    """Those that are ``shown``, by their model, with the data set and the device where ``every`` has several."""
    datasets, devices = {config.dataset for config in every}, {config.device for config in every if config.finished}
    groups: dict[str, list[Configuration]] = {}
    for config in filter(shown, every) if shown else every:
        named = config.model + (f" on {config.dataset}" if len(datasets) > 1 else "")
        title = named + (f", {config.device}" if len(devices) > 1 and config.device else "")
        groups.setdefault(title, []).append(config)
    return groups
