"""Tasks of the user's own: ``--task MODULE:CLASS`` names a class with the methods of the protocol."""

from __future__ import annotations

from typing import Any, get_args

from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, brief
from cifar_ray.config.facts import Inputs
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks.protocol import Task
from cifar_ray.tasks.spec import TaskSpec

_PARTS = ("spec", "target", "rule", "targets", "counts", "loss", "tally", "evaluation", "predictions")


def load(config: TrainConfig) -> type[Task]:
    """The user's class.

    Raises:
        ConfigError: when it cannot be imported or lacks a part of the protocol, or when its file is no longer the one
            that the run began with.
    """
    imports.check_source(config, "task")
    path = str(config.task)
    task: Any = imports.load(path, "task")
    rule = "must have the parts of cifar_ray.tasks.protocol.Task"
    is_class = isinstance(task, type)
    if not is_class:
        raise ConfigError("task", f"must name a class, and {path} is {brief(task)}")
    if lacks := next((name for name in _PARTS if not hasattr(task, name)), ""):
        raise ConfigError("task", f"{rule}, and {path} has no {lacks}")
    if not isinstance(task.spec, TaskSpec):
        raise ConfigError("task", f"{rule}; its spec must be a TaskSpec, and is {brief(task.spec)}")
    if task.target in get_args(Inputs):
        problem = f"must learn another column than the {task.target} that the model is given, not {path}"
        raise ConfigError("task", problem)
    loaded: type[Task] = task
    return loaded
