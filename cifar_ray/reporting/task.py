"""The figures that a run's task decides: what it has learned, how fast it counts, and the way to a target."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

from cifar_ray import tasks
from cifar_ray.config import limits
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
        return _figure(replace(self.spec.primary, title=f"Test {self.spec.primary.noun}"))

    @cached_property
    def validation(self) -> Figure:
        """The primary figure on the validation images, after the epoch that it chose; none of runs without."""
        of = self.spec.primary
        shown = _figure(replace(of, title=f"Validation {of.noun}"))
        read = metric(of.best, 100.0 if of.percent else 1.0)
        return replace(
            shown,
            key=f"validation_{shown.key.removeprefix('test_')}",
            measure=lambda trial: read(trial) if trial.measured_on == "val" else None,
            subset="val",
        )

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
                problem = f"must be a test {of.noun} above 0 and below 1, such as 0.6, got {target:g}"
                raise ConfigError("target", problem)

    @property
    def has_default_target(self) -> bool:
        """Whether a target follows from the runs where none is given: the primary figure is a share, better if high."""
        return self.spec.primary.percent and self.spec.primary.better == "max"

    def default_target(self, trials: Iterable[Run]) -> float | None:
        """The largest multiple of 5 % that the best epoch of every run reaches; None up to 1.5 times chance."""
        if not self.has_default_target:
            return None
        known = [(best(trial), len(trial.class_names)) for trial in trials]
        reached = min((value for value, _ in known if value is not None and math.isfinite(value)), default=0.0)
        target = round(math.floor((reached + _ROUNDING) / _STEP) * _STEP, 2)
        guessed = max((1 / classes for _, classes in known if classes), default=0.0)
        return target if target > _OVER_CHANCE * guessed + _ROUNDING else None

    def target_text(self, target: float) -> str:
        """A target with its unit, in the digits that tell two apart: ``60 %``."""
        return f"{self._digits(target)} %" if self.spec.primary.percent else self._digits(target)

    def target_key(self, target: float) -> str:
        """What names of figures and tables begin with that tell the way to a target: ``to_60_percent``."""
        return f"to_{self._digits(target)}{'_percent' * self.spec.primary.percent}"

    def _digits(self, target: float) -> str:
        return f"{target * 100 if self.spec.primary.percent else target:.6g}"

    def to_target(self, target: float) -> tuple[Figure, Figure]:
        """Seconds and epochs to a target."""
        note = "Counted at the end of the first epoch that has it; empty where none has. Seconds of training alone."
        way, why = self.target_key(target), partial(_unreached, target)
        return (
            Figure(
                f"{way}_s", "Training (s)", lambda trial: seconds_to(trial, target), " s", 2, "low", note=note, why=why
            ),
            Figure(f"{way}_epochs", "Epochs", lambda trial: epochs_to(trial, target), "", 1, "low", "work", why=why),
        )

    def cost(self, price: float, target: float | None = None) -> Figure:
        """What a training costs by images, for runs of unequal work; or the way to a target."""
        unit = self.spec.unit
        title, per = f"Cost per 1,000 {unit} (USD)", f" USD per 1,000 {unit}"
        if target is None:
            return Figure(f"cost_per_1000_{unit}_usd", title, partial(_paid, price), per, None, "low")
        note = f"Cost is that of the training until then, by the {unit} trained on until then."
        key, why = f"{self.target_key(target)}_usd_per_1000_{unit}", partial(_unreached, target)
        return Figure(key, title, partial(_paid_until, price, target), per, None, "low", note=note, why=why)


def _paid(price: float, trial: Run) -> float | None:
    return _per_1000(price, trial.nodes, figures.total_seconds(trial), figures.trained(trial))


def _paid_until(price: float, target: float, trial: Run) -> float | None:
    images = (epochs_to(trial, target) or 0.0) * (figures.trained_in_epoch(trial) or 0.0)
    return _per_1000(price, trial.nodes, seconds_to(trial, target), images)


def _per_1000(price: float, nodes: int, seconds: float | None, images: float | None) -> float | None:
    return limits.cost(price, nodes * seconds) / images * 1000 if seconds is not None and images else None


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


def reaches(trial: Run, value: float, target: float) -> bool:
    """Whether a value of its primary figure is at least as good as the target, but for rounding."""
    of = trial.task.primary
    return of.rank(value) >= of.rank(target) - _ROUNDING


def epochs_to(trial: Run, target: float) -> float | None:
    """Epochs until its primary figure reaches ``target``; None when it never did."""
    values = by_epoch(trial)
    reached = [epoch for epoch, value in values.items() if reaches(trial, value, target)]
    return float(min(reached)) if reached else None


def seconds_to(trial: Run, target: float) -> float | None:
    """Seconds of training until its primary figure reaches ``target``, without evaluation and start-up."""
    epochs, seconds = epochs_to(trial, target), figures.by_step(trial, "epoch_s")
    until = range(1, int(epochs or 0) + 1)
    return sum(seconds[epoch] for epoch in until) if epochs and seconds.keys() >= set(until) else None


def _unreached(target: float, trial: Run) -> str:
    """Why there is no way to a target."""
    reached = best(trial)
    if reached is None or reaches(trial, reached, target):
        return "not every epoch until then is recorded"
    return f"not reached: the best epoch has {trial.task.primary.text(reached)}"
