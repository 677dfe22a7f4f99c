"""The option that chooses a task."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, get_args

from cifar_ray.config.option import COCO_PATH, MASKS_PATH, OWN, TABLE_PATH, option, or_own

TaskName = Literal["classification", "segmentation", "regression"]
TaskText = Annotated[str, or_own(get_args(TaskName), "MODULE:CLASS")]

OF_DATA = {MASKS_PATH: "segmentation", COCO_PATH: "segmentation", TABLE_PATH: "regression"}
"""What a data set is for where it is not image classification."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Task."""

    task: TaskText | None = option(None, weights=True)
    """What is learned: classification, a class for each image or text; segmentation, a class for each pixel;
    regression, a number for each sample, or several; or MODULE:CLASS, a class of your own with the methods of
    cifar_ray.tasks.protocol.Task. Default: what the data set is for, segmentation with masks:PATH and coco:PATH,
    regression with table:PATH, else classification."""

    task_source: str | None = option(None, weights=True, only={"task": (OWN,)}, recorded=True)
    """SHA-256 of the file that defines your own task."""
