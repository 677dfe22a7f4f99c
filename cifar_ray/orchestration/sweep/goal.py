"""What a search is after: a figure of its runs, and which way it is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cifar_ray import tasks
from cifar_ray.config import errors, search
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.phases import PHASES
from cifar_ray.config.search import Better
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks import LOSS, Subset, TaskSpec, choosing
from cifar_ray.training.clock import PARTS

_TIMES = (*PHASES, "other", "wall", "epoch_mean", "iteration_mean", "iteration_median", "iteration_p95")
_AT_END = (
    *("peak_memory_mib", "skipped_steps"),
    *("bubble/theory", "bubble/measured", "staleness/mean", "staleness/max", "staleness/ahead_max"),
    *(f"time/{name}_s" for name in (*_TIMES, *(f"step_{part}" for part in PARTS))),
)
"""Figures that a run has at its end alone, beside the throughput and the best validation figure."""


@dataclass(frozen=True)
class Goal:
    """The figure that a search is after.

    Attributes:
        metric: its name among a run's metrics.
        better: whether the highest value is the best, or the lowest.
        task: what the runs learn.
    """

    metric: str
    better: Better
    task: TaskSpec

    def value(self, figures: Mapping[str, float]) -> float | None:
        """A run's value; None where it has none that is finite."""
        value = figures.get(self.metric, math.nan)
        return value if math.isfinite(value) else None

    def rank(self, value: float) -> float:
        """A number that is higher for a better value."""
        return value if self.better == "max" else -value

    def named(self, value: float) -> str:
        """A value with its name, as people read it: ``validation accuracy 91.23%``."""
        name = self.metric.replace("val/", "validation ").replace("/", " ")
        return f"{name} {self.text(value)}"

    def apart(self, value: float, other: float) -> str:
        """How far two values are apart, as people read it: ``0.83 points`` between shares."""
        return f"{abs(value - other) * 100:.2f} points" if self._is_share else self.text(abs(value - other))

    def check(self, sweep: SweepConfig, measured: Subset, has_optional: bool) -> None:
        """Refuse a figure that runs do not record, that a scheduler would miss, or that is not to choose.

        Args:
            sweep: whose goal this is.
            measured: the samples that runs are measured on after every epoch.
            has_optional: whether a run may have the task's optional figures.

        Raises:
            ConfigError: naming what there is.
        """
        task = self.task
        of_epochs = [figure.on(measured) for figure in (*task.figures, LOSS) if has_optional or not figure.optional]
        of_epochs += ["train/epoch_loss", "epoch_s", task.epoch_throughput]
        if self.metric in of_epochs:
            return
        if self.metric.startswith("test/") and measured != "test":
            raise ConfigError("objective", f"must go with --choose-by test to be a figure of the test, {self.metric}")
        if sweep.scheduler != "none":
            flag = f"--scheduler {sweep.scheduler}"
            wanted = errors.one_of(of_epochs)
            raise ConfigError("objective", f"must be a figure of every epoch for {flag}, {wanted}, got {self.metric!r}")
        known = [*of_epochs, task.throughput, *_AT_END, *([task.primary.best] if measured == "val" else [])]
        if self.metric not in known:
            near = errors.suggestion(self.metric, known)
            problem = f"must be a figure that runs record, such as {known[0]}, got {self.metric!r}{near}"
            raise ConfigError("objective", problem)

    def text(self, value: float) -> str:
        """A value as people read it: ``91.23%``."""
        return f"{value:.2%}" if self._is_share else f"{value:,.4g}"

    @property
    def _is_share(self) -> bool:
        figures = {figure.name: figure for figure in self.task.figures}
        _, _, name = self.metric.partition("/")
        return name in figures and figures[name].percent


def goal_of(sweep: SweepConfig, configs: Sequence[TrainConfig]) -> Goal | None:
    """What a search among these runs is after: its objective, or the figure that chooses.

    Returns:
        None when the sweep is no search, or runs learn different tasks, whose figures do not compare.
    """
    learned = {tasks.spec(config) for config in configs}
    if not sweep.is_search or len(learned) != 1:
        return None
    (task,) = learned
    if sweep.objective is not None:
        return Goal(*search.parse_objective(sweep.objective), task)
    objective = choosing.objective(configs[0], task)
    return Goal(task.primary.metric if objective is None else objective.metric, task.primary.better, task)


def chooser_of(sweep: SweepConfig) -> str:
    """What of a sweep is to choose by what its runs have learned, as a flag; empty when nothing is."""
    if sweep.objective is not None and not sweep.objective.startswith(("val/", "best/", "test/")):
        return ""
    if sweep.scheduler != "none":
        return f"--scheduler {sweep.scheduler}"
    if sweep.search != "grid":
        return f"--search {sweep.search}"
    return "--objective" if sweep.objective is not None else ""
