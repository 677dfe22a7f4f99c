"""What a search is after: a figure of its runs, and which way it is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from cifar_ray.tasks.spec import Figure, Subset, TaskSpec

_SUBSETS: Mapping[str, Subset] = {"val": "val", "best": "val", "test": "test"}
"""How a metric's name begins -> the samples that it is counted on."""


@dataclass(frozen=True)
class Goal:
    """The figure that a search is after.

    Attributes:
        metric: its name among a run's metrics.
        better: whether the highest value is the best, or the lowest.
        task: what the runs learn.
    """

    metric: str
    better: Literal["max", "min"]
    task: TaskSpec

    @property
    def figure(self) -> Figure | None:
        """The task's figure that it is; None of a loss, a time or anything else."""
        subset, _, name = self.metric.partition("/")
        return next((figure for figure in self.task.figures if subset in _SUBSETS and figure.name == name), None)

    @property
    def subset(self) -> Subset | None:
        """The samples that it is counted on; None of what is no figure of an evaluation."""
        return _SUBSETS.get(self.metric.partition("/")[0])

    @property
    def is_share(self) -> bool:
        """Whether it is a share from 0 to 1, which people read in percent."""
        return self.figure is not None and self.figure.percent

    @property
    def name(self) -> str:
        """What people call it: ``validation accuracy``."""
        return self.metric.replace("val/", "validation ").replace("/", " ")

    def value(self, figures: Mapping[str, float]) -> float | None:
        """A run's value; None where it has none that is finite.

        A finished run has that of its chosen epoch, where this is the figure that chose it.
        """
        primary, value = self.task.primary, figures.get(self.metric, math.nan)
        if (self.metric, self.better) == (primary.on("val"), primary.better):
            value = figures.get(primary.best, value)
        return value if math.isfinite(value) else None

    def images(self, runs: Iterable[Mapping[str, float]]) -> int | None:
        """How many images it is a share of in these runs, by their metrics; None of what is no such share, or where
        that is not recorded.
        """
        if self.figure is None or self.subset is None or not self.figure.binomial:
            return None
        counted = (metrics.get(self.task.counted_on(self.subset)) for metrics in runs)
        return int(min(filter(None, counted), default=0)) or None

    def rank(self, value: float) -> float:
        """A number that is higher for a better value."""
        return value if self.better == "max" else -value

    def named(self, value: float) -> str:
        """A value with its name, as people read it: ``validation accuracy 91.23%``."""
        return f"{self.name} {self.text(value)}"

    def apart(self, value: float, other: float) -> str:
        """How far two values are apart, as people read it: ``0.83 points`` between shares."""
        return f"{abs(value - other) * 100:.2f} points" if self.is_share else self.text(abs(value - other))

    def text(self, value: float) -> str:
        """A value as people read it: ``91.23%``."""
        return f"{value:.2%}" if self.is_share else f"{value:,.4g}"
