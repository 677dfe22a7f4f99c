"""What chooses between a run's checkpoints, and between runs: which figure, on which samples, and which way is better.

Whatever chooses asks here: the scheduler of a sweep, the best checkpoint that is kept, logged and
registered, and a run's patience.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks.spec import Figure, Subset, TaskSpec

DEFAULT_SHARE = 0.1
"""Share of the training images that is kept for validation where something is to choose, and no share is given."""

_SUBSETS: Mapping[str, Subset] = {"val": "val", "best": "val", "test": "test"}
"""How a metric's name begins -> the samples that it is counted on."""


@dataclass(frozen=True)
class Goal:
    """What chooses between the epochs of a run, or between runs: a metric, and which way is better.

    Attributes:
        metric: its name among a run's metrics.
        better: whether the highest value is the best, or the lowest.
        task: what the runs learn.
    """

    metric: str
    better: Literal["max", "min"]
    task: TaskSpec

    @property
    def subset(self) -> Subset | None:
        """The samples that it is counted on; None of what is no figure of an evaluation."""
        return _SUBSETS.get(self.metric.partition("/")[0])

    @cached_property
    def figure(self) -> Figure:
        """The task's figure under its name on those samples, ``validation accuracy``; else one of the metric's name."""
        subset, _, name = self.metric.replace("val/", "validation/").partition("/")
        words = f"{subset} {name}".strip().replace("/", " ")
        known = {figure.name: figure for figure in self.task.figures if self.subset}
        title = f"{subset} {known[name].noun}" if name in known else words
        of = known.get(name, Figure(words, words))
        return replace(of, name=words, title=title[:1].upper() + title[1:], better=self.better)

    def value(self, figures: Mapping[str, float]) -> float | None:
        """A run's value; None where it has none that is finite.

        A finished run has that of its chosen epoch, where this is the figure that chose it.
        """
        primary, value = self.task.primary, figures.get(self.metric, math.nan)
        if (self.metric, self.better) == (primary.on("val"), primary.better):
            value = figures.get(primary.best, value)
        return value if math.isfinite(value) else None

    def images(self, runs: Iterable[Mapping[str, float]]) -> int | None:
        """How many samples it is a share of, by these runs' metrics; None of another figure, or where none has it."""
        if not self.figure.binomial:
            return None
        counted = (metrics.get(self.task.counted_on(self.subset or "test")) for metrics in runs)
        return int(min(filter(None, counted), default=0)) or None


def by_primary(task: TaskSpec, subset: Subset) -> Goal:
    """The primary figure on these samples as what chooses."""
    return Goal(task.primary.on(subset), task.primary.better, task)


def objective(task: TaskSpec, facts: Facts) -> Goal | None:
    """What chooses among the epochs of a run on such data, and between it and other runs; None when nothing may."""
    return by_primary(task, "val") if facts.val_size else None


def is_exhausted(config: TrainConfig, task: TaskSpec, facts: Facts, epochs: Sequence[Mapping[str, float]]) -> bool:
    """Whether the last ``--patience`` epochs have each been no better than the best one before them.

    Args:
        config: resolved.
        task: says which figure counts.
        facts: of the data set.
        epochs: the metrics of each epoch so far, from the first; a figure that is NaN is no better than any.
    """
    chooser = objective(task, facts)
    if config.patience is None or chooser is None or len(epochs) <= config.patience:
        return False
    ranks = [chooser.figure.rank(metrics.get(chooser.metric, math.nan)) for metrics in epochs]
    return max(ranks[-config.patience :]) <= max(ranks[: -config.patience])
