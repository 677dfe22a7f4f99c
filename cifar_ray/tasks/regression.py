"""Regression: one number for each sample, or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cifar_ray.config.errors import brief
from cifar_ray.tasks.protocol import Evaluation, Targets, constant
from cifar_ray.tasks.spec import Figure, TaskSpec

if TYPE_CHECKING:  # reading the facts needs no torch
    from torch import Tensor

    from cifar_ray.config.facts import Facts
    from cifar_ray.config.train import TrainConfig

_CONSTANT = 1e-12
"""Share of the squares of a target's values that their deviations from the mean must exceed: less is rounding."""


class Regression:
    """Mean squared error of standardised targets; figures in the targets' own units, as means over the targets.

    A model learns targets of mean 0 and standard deviation 1 over the training samples. Those are part of the run.
    """

    spec = TaskSpec(
        "regression",
        (
            Figure("r2", "R2"),
            Figure("mae", "MAE", "min", beside=True),
            Figure("mse", "MSE", "min"),
        ),
        answer="values",
        loss="squared error, standardised",
    )
    target = "targets"
    rule = "for each a finite number (N,), or several (N, targets), which vary over the training samples"

    def __init__(self, config: TrainConfig, facts: Facts | None = None) -> None:
        mean, std = (facts.target_mean, facts.target_std) if facts else ((), ())
        self._standard = (mean or (0.0,), std or (1.0,))

    @classmethod
    def targets(cls, train: Any, test: Any, names: Sequence[Any] | None) -> Targets:
        """See the protocol."""
        import numpy as np

        halves = []
        for name, half in zip(("training", "test"), map(np.asarray, (train, test))):
            if half.dtype.kind not in "iuf" or half.ndim not in (1, 2) or not half.size:
                raise ValueError(f"{name} targets of {half.dtype} {half.shape}")
            halves.append(half.astype(np.float64).reshape(len(half), -1))
            if not np.isfinite(halves[-1]).all():
                raise ValueError(f"{name} targets that are not finite")
        count = halves[0].shape[1]
        if halves[1].shape[1] != count:
            raise ValueError(f"{count} targets for training and {halves[1].shape[1]} for the test")
        if names is None:
            names = ["target"] if count == 1 else range(count)
        if isinstance(names, str) or len(names) != count or len({*map(str, names)}) != count:
            raise ValueError(f"{brief(names)} as the names of {count} targets")
        if not np.ptp(halves[0], axis=0).all():
            raise ValueError("a target that is the same for all training samples")
        return Targets(halves[0], halves[1], tuple(map(str, names)))

    def counts(self, targets: Tensor) -> None:
        """Every sample counts 1."""

    def loss(self, outputs: Tensor, targets: Tensor, divisor: float) -> Tensor:
        """Mean squared error of outputs (B, targets) and standardised targets, over samples and targets."""
        from torch.nn import functional as F

        errors = F.mse_loss(outputs.float(), self._standardised(targets).float(), reduction="none")
        return errors.mean(1).sum() / divisor

    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums over samples of each target, standardised: of errors' squares and sizes, of values and their squares."""
        values = self._standardised(targets)
        errors = outputs.double() - values
        return {
            "squares": errors.square().sum(0),
            "sizes": errors.abs().sum(0),
            "values": values.sum(0),
            "values_squared": values.square().sum(0),
        }

    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        """Figures in float64, of each target and their means; a target that is constant here has no R2."""
        import torch

        squares, sizes, values, squared = (tally[name] for name in ("squares", "sizes", "values", "values_squared"))
        std = constant(self._standard, squares.device)[1]
        deviations = squared - values.square() / images
        varies = deviations > _CONSTANT * squared
        r2 = torch.where(varies, 1 - squares / deviations, math.nan)
        each = {"r2": r2, "mae": sizes / images * std, "mse": squares / images * std.square()}
        means = {name: of[varies].mean().item() if name == "r2" else of.mean().item() for name, of in each.items()}
        return Evaluation(
            metrics={"loss": (squares.mean() / images).item(), **means},
            images=images,
            per_class={name: of.tolist() for name, of in each.items()} if len(std) > 1 else {},
        )

    def predictions(self, outputs: Tensor) -> Tensor:
        """Values in the targets' own units: float64 (B, targets), since float32 may round a large mean's deviations."""
        mean, std = constant(self._standard, outputs.device)
        return outputs.double() * std + mean

    def _standardised(self, targets: Tensor) -> Tensor:
        mean, std = constant(self._standard, targets.device)
        return (targets - mean) / std


TASK = Regression
