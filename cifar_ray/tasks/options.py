"""The option that chooses a task. Nothing here imports torch, so that ``--help`` is quick."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, get_args

from cifar_ray.config.option import OWN, option, or_own

TaskName = Literal["classification"]
TaskText = Annotated[str, or_own(get_args(TaskName), "MODULE:CLASS")]


@dataclasses.dataclass(frozen=True)
class Task:
    """Task."""

    task: TaskText | None = option(None, weights=True)
    """What is learned: classification, or MODULE:CLASS, a class of your own with the methods of
    cifar_ray.tasks.protocol.Task. Default: what the data set is for, classification."""

    task_source: str | None = option(None, weights=True, only={"task": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines your own task."""
