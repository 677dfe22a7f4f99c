"""What a sweep is to choose by: its goal, whether runs record that, and which flag asks for it."""

from __future__ import annotations

from collections.abc import Sequence

from cifar_ray import data, tasks
from cifar_ray.config import errors
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks import LOSS, Subset, choosing
from cifar_ray.tasks.choosing import Goal
from cifar_ray.training.rank_times import PARTS, PHASES

_TIMES = (*PHASES, "other", "wall", "epoch_mean", "iteration_mean", "iteration_median", "iteration_p95")
_AT_END = (
    *("peak_memory_mib", "skipped_steps"),
    *("bubble/theory", "bubble/measured", "staleness/mean", "staleness/max", "staleness/ahead_max"),
    *(f"time/{name}_s" for name in (*_TIMES, *(f"step_{part}" for part in PARTS))),
)
"""Figures that a run has at its end alone, beside the throughput and the best validation figure."""


def check_goal(goal: Goal, sweep: SweepConfig, measured: Subset, has_optional: bool) -> None:
    """Refuse a figure that runs do not record, that a scheduler would miss, or that is not to choose.

    Runs are ``measured`` on those samples after every epoch, and may have the task's optional figures.

    Raises:
        ConfigError: naming what there is.
    """
    task, metric = goal.task, goal.metric
    if metric.startswith("test/"):
        raise ConfigError("objective", f"must not be a figure of the test, by which nothing is chosen, got {metric}")
    known = [figure.on(measured) for figure in (*task.figures, LOSS) if has_optional or not figure.optional]
    known += ["train/epoch_loss", "epoch_s", task.epoch_throughput]
    if sweep.scheduler == "none":
        known += [task.throughput, *_AT_END, *([task.primary.best] if measured == "val" else [])]
    if metric not in known:
        of_epochs = "" if sweep.scheduler == "none" else f" after every epoch, for --scheduler {sweep.scheduler}"
        problem = f"must be a figure that runs record{of_epochs}, such as {known[0]}, got {metric!r}"
        raise ConfigError("objective", f"{problem}{errors.suggestion(metric, known)}")


def goal_of(sweep: SweepConfig, configs: Sequence[TrainConfig]) -> Goal | None:
    """What a search among these runs is after: its objective, or the figure that chooses.

    Returns:
        None when the sweep is no search, or runs learn different tasks, whose figures do not compare.
    """
    learned = {tasks.spec(config, data.facts(config)) for config in configs}
    if not sweep.is_search or len(learned) != 1:
        return None
    (task,) = learned
    if sweep.objective is not None:
        return Goal(*sweeps.parse_objective(sweep.objective), task)
    return choosing.objective(task, data.facts(configs[0])) or choosing.by_primary(task, "test")


def chooser_of(sweep: SweepConfig) -> str:
    """What of a sweep is to choose by what its runs have learned, as a flag; empty when nothing is."""
    if sweep.objective is not None and not sweep.objective.startswith(("val/", "best/", "test/")):
        return ""
    if sweep.scheduler != "none":
        return f"--scheduler {sweep.scheduler}"
    if sweep.search != "grid":
        return f"--search {sweep.search}"
    return "--objective" if sweep.objective is not None else ""
