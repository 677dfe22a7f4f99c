"""Tasks by name: what a batch, a loss, an evaluation and a prediction are.

The registry is ``TaskName`` in ``config/model.py``: every name in it is a file here, whose ``TASK`` is a class with the
methods of :class:`~cifar_ray.tasks.protocol.Task`.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from cifar_ray.config.model import TASKS
from cifar_ray.config.option import chosen, is_own
from cifar_ray.tasks import classification
from cifar_ray.tasks.protocol import Evaluation, Targets
from cifar_ray.tasks.spec import LOSS, SUBSETS, Figure, Subset, TaskSpec, measured_on

if TYPE_CHECKING:
    from cifar_ray.config.facts import Facts
    from cifar_ray.config.train import TrainConfig
    from cifar_ray.tasks.protocol import Task

__all__ = ["LOSS", "SUBSETS", "Evaluation", "Figure", "Subset", "Targets", "TaskSpec", "measured_on"]

UNITS = {"images": "images", "features": "rows", "tokens": "texts"}
"""What samples are called, by what a model is given of them."""

USUAL = classification.Classification.spec
"""The task of records that name none."""


def of(config: TrainConfig) -> type[Task]:
    """The class of a config's task; a ConfigError when one of the user's own cannot be loaded or is no task."""
    if is_own(config.task):
        from cifar_ray.tasks import own

        return own.load(config)
    return _named(config.task or usual(config))


def _named(name: str) -> type[Task]:
    task: type[Task] = importlib.import_module(f"cifar_ray.tasks.{name}").TASK
    return task


def usual(config: TrainConfig) -> str:
    """The task that a config's data set is for."""
    return TASKS.get(chosen(config.dataset) or "", USUAL.name)


def column(config: TrainConfig) -> str:
    """What is known of a config's images where its data set is none of a function of the user's own: ``labels``."""
    return _named(usual(config)).target


def build(config: TrainConfig, facts: Facts) -> Task:
    """A config's task, ready for use on a data set with these facts."""
    task, known = of(config)(config, facts), spec(config, facts)
    if task.spec != known:
        vars(task)["spec"] = known
    return task


def spec(config: TrainConfig, data: Facts) -> TaskSpec:
    """The facts of a config's task, which counts images unless it says otherwise or the data set has none."""
    facts, unit = of(config).spec, UNITS[data.inputs]
    return facts if facts.unit != "images" else dataclasses.replace(facts, unit=unit)


def has_optional(task: TaskSpec, names: int) -> bool:
    """Whether evaluations have the task's optional figures, where a model gives so many numbers for a sample."""
    return task.name != USUAL.name or names > classification.MANY
