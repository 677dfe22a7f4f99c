"""Bring your own task: numbers in place of classes, some of which are not known.

    cifar-ray train --task own_task:Ink --dataset own_task:load --model resnet --epochs 3

from this folder. For each handwritten digit, the task is how much ink its four quadrants have, in percent. A quarter of
the answers is missing, as in data that people have collected, so samples count 1 to 4 in the loss. What `best`, ASHA, a
report and the display go by is the root of the mean squared error, the lower the better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.tasks import Evaluation, Figure, Targets, TaskSpec

QUADRANTS = ("top left", "top right", "bottom left", "bottom right")
TEST = 360


def load() -> tuple[Any, Any, Any]:
    """Images of 16x16 pixels, and the ink of their quadrants, NaN where it is not known."""
    digits = load_digits().images
    quadrants = digits.reshape(-1, 2, 4, 2, 4).mean(axis=(2, 4)).reshape(-1, 4)
    ink = (100 / 16 * quadrants).astype(np.float32)
    number = np.arange(len(digits))
    ink[number, number * 7 % 13 % 4] = np.where(number % 3 > 0, np.nan, ink[number, number * 7 % 13 % 4])
    images = np.rint(digits * (255 / 16)).astype(np.uint8).repeat(2, axis=1).repeat(2, axis=2)
    return (images[TEST:], ink[TEST:]), (images[:TEST], ink[:TEST]), QUADRANTS


class Ink:
    """Squared error over what is known."""

    spec = TaskSpec(
        "ink",
        (Figure("rmse", "RMSE", better="min"), Figure("mae", "MAE", better="min"), Figure("r2", "R²")),
        answer="values",
    )
    target = "ink"
    rule = "for each image as many numbers, float32, NaN where one is not known"

    def __init__(self, config: TrainConfig, facts: Facts | None = None) -> None:
        """Nothing of the run matters here."""

    @classmethod
    def targets(cls, train: Any, test: Any, names: Sequence[Any] | None) -> Targets:
        """Check what `load` returns beside the images."""
        halves = [np.asarray(half) for half in (train, test)]
        if any(half.dtype != np.float32 or half.ndim != 2 for half in halves):
            raise ValueError(f"arrays of {halves[0].dtype} {halves[0].shape}")
        count = halves[0].shape[1]
        return Targets(*halves, tuple(map(str, range(count) if names is None else names)))

    def counts(self, targets: Tensor) -> Tensor:
        """How many numbers of each sample are known."""
        return (~targets.isnan()).sum(1)

    def loss(self, outputs: Tensor, targets: Tensor, divisor: float) -> Tensor:
        """Squared error, of what is known, in units of (10 percent)²."""
        return (_error(outputs, targets) / 10).square().sum() / divisor

    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums of the errors and of the targets, and how many they are of."""
        error, known = _error(outputs, targets).double(), targets.double().nan_to_num()
        sums = {"squares": error.square(), "absolute": error.abs(), "sum": known, "sum of squares": known.square()}
        return {"known": self.counts(targets).sum(), **{name: each.sum() for name, each in sums.items()}}

    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        """The figures of a whole test set."""
        sums = {name: each.item() for name, each in tally.items()}
        mean_square = sums["squares"] / sums["known"]
        spread = sums["sum of squares"] / sums["known"] - (sums["sum"] / sums["known"]) ** 2
        figures = {"loss": mean_square / 100, "rmse": mean_square**0.5, "r2": 1 - mean_square / spread}
        return Evaluation({**figures, "mae": sums["absolute"] / sums["known"]}, images)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Percent."""
        return 10 * outputs.float()


def _error(outputs: Tensor, targets: Tensor) -> Tensor:
    """In percent; 0 where the target is not known. The model gives tens of percent."""
    return torch.where(targets.isnan(), 0.0, 10 * outputs.float() - targets.nan_to_num())
