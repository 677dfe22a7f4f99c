"""What configurations are called in a table's rows, a chart's series and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.tracking.study import Study

STRATEGY = "strategy"


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
    """

    strategies: bool
    batches: bool
    devices: bool
    global_batch: bool

    @classmethod
    def of(cls, study: Study, among: Sequence[Configuration]) -> Names:
        """Names for these configurations of a study."""
        return cls(
            strategies=compared(among),
            batches=len({aggregate.column(study, one) for one in among}) > 1,
            devices=len({one.device for one in among if one.finished}) > 1,
            global_batch=study.hold == "global_batch",
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
        others = [f"{name}={value}" for name, value in one.others if name != STRATEGY]
        return [*([size] if self.batches else []), *others, *([one.device] if self.devices and one.device else [])]


def title_of(every: Sequence[Configuration]) -> Callable[[Configuration], str]:
    """Names a configuration's model, with the data set and the device where they have several."""
    datasets, devices = {one.dataset for one in every}, {one.device for one in every if one.finished}

    def title(one: Configuration) -> str:
        named = one.model + (f" on {one.dataset}" if len(datasets) > 1 else "")
        return named + (f", {one.device}" if len(devices) > 1 and one.device else "")

    return title
