"""What configurations are called in a table's rows, a chart's series and a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cifar_ray.reporting.frame import Configuration

STRATEGY = "strategy"


def compared(among: Sequence[Configuration]) -> bool:
    """Whether they have more than one strategy."""
    return len({config.strategy for config in among} - {""}) > 1


class Names:
    """Names that say what tells these configurations of a study apart, and nothing that they share."""

    def __init__(self, among: Sequence[Configuration]) -> None:
        self.strategies = compared(among)
        self._batches = len({config.column for config in among}) > 1
        self._devices = len({config.device for config in among if config.finished}) > 1

    def row(self, config: Configuration) -> str:
        """``ddp, 1x2, batch 64``."""
        return ", ".join([*self._strategy(config), config.topology, *self._rest(config)])

    def series(self, config: Configuration) -> str:
        """What it is called but for its topology, such as ``ddp, batch 64``; empty where nothing else differs."""
        return ", ".join([*self._strategy(config), *self._rest(config)])

    def words(self, config: Configuration) -> str:
        """``ddp on 1x2 with batch 64``, for a sentence."""
        place = " on ".join([*self._strategy(config), config.topology])
        return " with ".join(filter(None, [place, ", ".join(self._rest(config))]))

    def _strategy(self, config: Configuration) -> list[str]:
        return [config.strategy or "strategy not recorded"] if self.strategies else []

    def _rest(self, config: Configuration) -> list[str]:
        held = "global batch" if config.runs.study.hold == "global_batch" else "batch"
        others = [(name.rpartition("_options.")[2], value) for name, value in config.others if name != STRATEGY]
        return [
            *([f"{held} {config.column}"] if self._batches else []),
            *(f"{name}={_short(value)}" for name, value in others),
            *([config.device] if self._devices and config.device else []),
        ]


def _short(value: str) -> str:
    """A value without the digits that tell nothing apart, of a hash or of a number that was drawn."""
    if re.fullmatch("[0-9a-f]{40,}", value):
        return value[:12]
    return f"{float(value):.8g}" if re.fullmatch(r"-?\d*\.\d{8,}(e[+-]?\d+)?", value) else value


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
