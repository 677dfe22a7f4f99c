"""The budget of a sweep: which cells it does not start, and when those that run are to stop."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cifar_ray import data
from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.sweep.plan import PlannedCell

_OF_PACE = (
    *("model", "model_options", "dataset", "augment", "optimizer", "freeze", "precision", "device", "compile"),
    *("image_size", "text.max_length", "stream", "val_share", "test_images"),
    *("topology", "cpus_per_worker", "global_batch_size", "accumulate"),
    *("strategy", "strategy_options", "bucket_cap_mb", "sync_batchnorm"),
)
"""What tells the seconds of an image apart."""


class Budget:
    """What a sweep may use and has used.

    Attributes:
        placed_s: seconds in which at least one run was on its nodes, over all drivers.
    """

    def __init__(self, config: SweepConfig, cells: Sequence[PlannedCell], placed_s: float = 0.0) -> None:
        self.placed_s = placed_s
        self._config, self._cells = config, cells
        self._price = config.base.price
        self._max_s = None if config.max_time is None else limits.seconds(config.max_time)

    @property
    def usd(self) -> float | None:
        """What all runs have cost so far; None without a price."""
        if self._price is None:
            return None
        return sum(cell.row.spent.usd(self._price) or 0.0 for cell in self._cells)

    def words(self, key: str) -> str:
        """A limit as it was given: ``the sweep's --max-time 2h``."""
        return f"{limits.named(limits.of_sweep(key))} {getattr(self._config, key)}"

    def passed(self, seconds: float) -> None:
        """So much time has passed since the last call."""
        if any(cell.state == boards.RUNNING and cell.row.spent.nodes for cell in self._cells):
            self.placed_s += seconds

    @property
    def reached(self) -> str:
        """Which limit is reached, ``max_time`` or ``max_cost``; empty while none is."""
        if self._max_s is not None and self.placed_s >= self._max_s:
            return "max_time"
        most = self._config.max_cost
        return "max_cost" if most is not None and (self.usd or 0.0) >= most else ""

    def refusal(self, cell: PlannedCell, begun: Collection[PlannedCell]) -> str:
        """Why a cell is not started: it is expected to take more than those that have ``begun`` leave; else empty."""
        if reached := self.reached:
            return f"{self.words(reached)} is reached"
        left = self._left_s(cell)
        if self._max_s is not None and self.placed_s + left > self._max_s:
            rest = limits.duration(self._max_s - self.placed_s)
            return f"expected to take {limits.duration(left)}, and {rest} of {self.words('max_time')} are left"
        if self._config.max_cost is not None and left:
            wanted = self._paid(cell)
            running = sum(self._paid(other) for other in begun if other.state in (boards.WAITING, boards.RUNNING))
            rest_usd = self._config.max_cost - (self.usd or 0.0) - running
            if wanted > rest_usd:
                rest = limits.dollars(max(rest_usd, 0.0))
                return f"expected to cost {limits.dollars(wanted)}, and {rest} of {self.words('max_cost')} are left"
        return ""

    def _paid(self, cell: PlannedCell) -> float:
        """US dollars that a cell is expected to cost yet, at least; 0 when unknown."""
        assert cell.config is not None
        assert self._price is not None
        return limits.cost(self._price, cell.config.placement.nodes * self._left_s(cell))

    def _left_s(self, cell: PlannedCell) -> float:
        """Seconds that a cell is expected to take yet, at least; 0 when unknown.

        The fastest finished run of the same kind counts, by the images that it has trained on.
        """
        assert cell.config is not None
        paces = [
            other.row.spent.placed_s / _images(other.config, other.row.epoch)
            for other in self._cells
            if other.config is not None and other.state == boards.FINISHED and other.row.spent.placed_s
            if all(_value(cell, name) in ("auto", _value(other, name)) for name in _OF_PACE)
        ]
        whole = min(paces, default=0.0) * _images(cell.config, cell.config.epochs)
        return max(whole - cell.row.spent.placed_s, 0.0)

    def refuse_reached(self, name: str) -> None:
        """Refuse to go on with a sweep that has reached its limits."""
        if key := self.reached:
            used = limits.duration(self.placed_s) if key == "max_time" else limits.dollars(self.usd or 0.0)
            raise ConfigError(
                key, f"must be more than the {used} of sweep {name} so far, got {getattr(self._config, key)}"
            )


def _value(cell: PlannedCell, name: str) -> object:
    """An option's value, as far as it is decided."""
    decided, (outer, _, inner) = vars(cell.decided), name.partition(".")
    value = decided[outer] if outer in decided else getattr(cell.config, outer)
    return value.get(inner) if inner else value


def _images(config: ResolvedConfig, epochs: int) -> int:
    """Images that a run trains on in so many epochs; in all of them when 0, as where its patience has not ended it."""
    return (epochs or config.epochs) * data.steps_per_epoch(config) * config.global_batch_size
