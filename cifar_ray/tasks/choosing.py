"""What chooses between a run's checkpoints, and between runs: which figure, on which samples, and which way is better.

Whatever chooses asks here: the scheduler of a sweep, the best checkpoint that is kept, logged and
registered, and a run's patience.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks.spec import Figure, Subset, TaskSpec

DEFAULT_SHARE = 0.1
"""Share of the training images that is kept for validation where something is to choose, and no share is given."""


@dataclass(frozen=True)
class Objective:
    """The figure that chooses.

    Attributes:
        figure: says which way is better.
        subset: the samples that it is counted on.
    """

    figure: Figure
    subset: Subset

    @property
    def metric(self) -> str:
        """Its name among a run's metrics; it is there after every epoch."""
        return self.figure.on(self.subset)


def objective(task: TaskSpec, facts: Facts) -> Objective | None:
    """What chooses among the epochs of a run on such data, and between it and other runs; None when nothing may."""
    return Objective(task.primary, "val") if facts.val_size else None


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
