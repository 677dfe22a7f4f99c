"""What a sweep is to choose by: its goal, whether runs record that, and which flag asks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cifar_ray import data, tasks
from cifar_ray.config import errors
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks import LOSS, TaskSpec, choosing
from cifar_ray.tasks.choosing import Goal
from cifar_ray.training.rank_times import PARTS, PHASES

_TIMES = (*PHASES, "other", "wall", "epoch_mean", "iteration_mean", "iteration_median", "iteration_p95")
_AT_END = (
    *("peak_memory_mib", "skipped_steps"),
    *("bubble/theory", "bubble/measured", "staleness/mean", "staleness/max", "staleness/ahead_max"),
    *(f"time/{name}_s" for name in (*_TIMES, *(f"step_{part}" for part in PARTS))),
)
"""Figures that a run has at its end alone, beside the throughput and the best validation figure."""


def check_comparable(sweep: SweepConfig, configs: Sequence[TrainConfig]) -> None:
    """Refuse to compare runs of different tasks, or by what they do not record, what a scheduler misses, or a test."""
    usual = {"objective": (None,), "scheduler": ("none",), "search": ("grid", "random")}
    comparing = [key for key, values in usual.items() if getattr(sweep, key) not in values]
    if comparing and len(learned := _learned(configs)) > 1:
        names = ", ".join(sorted(task.name for task in learned))
        raise ConfigError(comparing[0], f"must be left out where runs learn different tasks, here {names}")
    longest = max((config.epochs for config in configs), default=math.inf)
    if sweep.scheduler != "none" and sweep.asha_grace > longest:
        raise ConfigError("asha_grace", f"must be at most the {longest} epochs of a run, got {sweep.asha_grace}")
    if (goal := goal_of(sweep, configs)) is None:
        return
    task, metric, measured = goal.task, goal.metric, data.facts(configs[0]).measured
    if metric.startswith("test/"):
        raise ConfigError("objective", f"must not be a figure of the test, by which nothing is chosen, got {metric}")
    has_optional = any(tasks.has_optional(task, data.facts(config).num_classes) for config in configs)
    known = [figure.on(measured) for figure in (*task.figures, LOSS) if has_optional or not figure.optional]
    known += ["train/epoch_loss", "epoch_s", task.epoch_throughput]
    if sweep.scheduler == "none":
        known += [task.throughput, *_AT_END, *([task.primary.best] if measured == "val" else [])]
    if metric not in known:
        of_epochs = "" if sweep.scheduler == "none" else f" after every epoch, for --scheduler {sweep.scheduler}"
        problem = f"must be a figure that runs record{of_epochs}, such as {known[0]}, got {metric!r}"
        raise ConfigError("objective", f"{problem}{errors.suggestion(metric, known)}")


def _learned(configs: Sequence[TrainConfig]) -> set[TaskSpec]:
    return {tasks.spec(config, data.facts(config)) for config in configs}


def goal_of(sweep: SweepConfig, configs: Sequence[TrainConfig]) -> Goal | None:
    """What a search among these runs is after: its objective, or the figure that chooses.

    Returns:
        None when the sweep is no search, or runs learn different tasks, whose figures do not compare.
    """
    learned = _learned(configs)
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
