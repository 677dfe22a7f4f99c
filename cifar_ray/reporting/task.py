"""The figures that a run's task decides: what it has learned, how fast it counts, and the way to a target."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

from cifar_ray import tasks
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import figures
from cifar_ray.reporting.figures import Figure, metric, result
from cifar_ray.tasks import TaskSpec
from cifar_ray.tracking.study import Run

_STEP = 0.05
_OVER_CHANCE = 1.5
_ROUNDING = 1e-6


@dataclass(frozen=True)
class TaskFigures:
    """The figures of runs of one task, for their reports."""

    spec: TaskSpec

    @cached_property
    def every(self) -> tuple[Figure, ...]:
        """The task's own figures, the primary one first."""
        return tuple(map(_figure, self.spec.figures))

    @property
    def primary(self) -> Figure:
        """The figure by which runs are compared."""
        return self.every[0]

    @property
    def tested(self) -> Figure:
        """The primary figure, with the test in its title, for beside the one of validation."""
        return replace(self.primary, title=self._on("test"))

    @cached_property
    def validation(self) -> Figure:
        """The primary figure on the validation images, after the epoch that it chose; none of runs without."""
        of = self.spec.primary
        read = metric(of.best, 100.0 if of.percent else 1.0)
        return replace(
            self.primary,
            key=f"validation_{self.primary.key.removeprefix('test_')}",
            title=self._on("validation"),
            measure=lambda trial: read(trial) if trial.measured_on == "val" else None,
            of=replace(of, title=f"Validation {of.noun}"),
            subset="val",
        )

    def _on(self, images: str) -> str:
        of = self.spec.primary
        return f"{images.capitalize()} {of.noun}{' (%)' * of.percent}"

    def chooser(self, trials: Iterable[Run]) -> Figure:
        """The figure by which a reader may choose among these runs: on validation images where all have them."""
        return self.validation if all(trial.measured_on == "val" for trial in trials) else self.primary

    @property
    def beside(self) -> list[Figure]:
        """Those that stand in the main table with the primary one."""
        return [figure for figure, of in zip(self.every, self.spec.figures) if of.beside]

    @cached_property
    def throughput(self) -> Figure:
        """What is counted in a second, ``images/s``."""
        key, title = self.spec.throughput, f"{self.counts}/s"
        note = f"{title} are in steady state."
        return Figure(key, title, metric(key), f" {self.spec.unit}/s", 1, "high", "", note)

    @property
    def counts(self) -> str:
        """What is counted, as a title begins: ``Images``."""
        return self.spec.unit[:1].upper() + self.spec.unit[1:]

    def check(self, targets: Iterable[float]) -> None:
        """Refuse targets that no run can reach.

        Raises:
            ConfigError: when one is none.
        """
        of = self.spec.primary
        for target in targets:
            if of.percent and not 0 < target < 1:
                raise ConfigError(
                    "target", f"must be a test {of.noun} above 0 and below 1, such as 0.6, got {target:g}"
                )

    def default_target(self, trials: Iterable[Run]) -> float | None:
        """The largest multiple of 5 % that the best epoch of every run reaches; None up to 1.5 times chance.

        None too unless the primary figure is a share that is better if high.
        """
        if not (self.spec.primary.percent and self.spec.primary.better == "max"):
            return None
        known = [(best(trial), len(trial.class_names)) for trial in trials]
        reached = min((value for value, _ in known if value is not None and math.isfinite(value)), default=0.0)
        target = round(math.floor((reached + _ROUNDING) / _STEP) * _STEP, 2)
        guessed = max((1 / classes for _, classes in known if classes), default=0.0)
        return target if target > _OVER_CHANCE * guessed + _ROUNDING else None

    def target_text(self, target: float) -> str:
        """A target with its unit, in the digits that tell two apart: ``60 %``."""
        return f"{100 * target:.6g} %" if self.spec.primary.percent else f"{target:.6g}"

    def target_key(self, target: float) -> str:
        """What names of figures and tables begin with that tell the way to a target: ``to_60_percent``."""
        return f"to_{self.target_text(target)}".replace(" %", "_percent")

    def to_target(self, target: float) -> tuple[Figure, Figure]:
        """Seconds and epochs to a target."""
        key, note = self.target_key(target), "Of training alone, to the end of the first epoch that reaches it."
        seconds, epochs = partial(seconds_to, target=target), partial(epochs_to, target=target)
        return (
            Figure(f"{key}_s", "Training (s)", seconds, " s", 2, "low", note=note),
            Figure(f"{key}_epochs", "Epochs", epochs, "", 1, "low", "work"),
        )


def _figure(of: tasks.Figure) -> Figure:
    key = re.sub(r"\W", "_", of.name)
    better: Literal["low", "high"] = "high" if of.better == "max" else "low"
    if of.percent:
        return Figure(f"{key}_percent", f"{of.title} (%)", result(of, 100.0), " %", 2, better, "work", of=of)
    return Figure(f"test_{key}", of.title, result(of), "", None, better, "work", of=of)


def by_epoch(trial: Run) -> dict[int, float]:
    """Its primary figure after every epoch, on the validation images where it has any, else on the test."""
    return figures.by_step(trial, trial.task.primary.on(trial.measured_on))


def best(trial: Run) -> float | None:
    """The best value of its primary figure after any epoch, on the images of :func:`by_epoch`."""
    of = trial.task.primary
    recorded = [trial.metrics[name] for name in (of.best, of.on(trial.measured_on)) if name in trial.metrics]
    return max([*by_epoch(trial).values(), *recorded], key=of.rank, default=None)


def epochs_to(trial: Run, target: float) -> float | None:
    """Epochs until its primary figure reaches ``target``, but for rounding; None when it never did."""
    rank = trial.task.primary.rank
    reached = [epoch for epoch, value in by_epoch(trial).items() if rank(value) >= rank(target) - _ROUNDING]
    return float(min(reached)) if reached else None


def seconds_to(trial: Run, target: float) -> float | None:
    """Seconds of training until its primary figure reaches ``target``, without evaluation and start-up."""
    epochs, seconds = epochs_to(trial, target), figures.by_step(trial, "epoch_s")
    until = range(1, int(epochs or 0) + 1)
    return sum(seconds[epoch] for epoch in until) if epochs and seconds.keys() >= set(until) else None
