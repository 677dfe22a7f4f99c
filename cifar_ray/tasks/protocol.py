"""What the program asks of a task."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from cifar_ray.tasks.spec import TaskSpec

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from cifar_ray.config.facts import Facts
    from cifar_ray.config.train import TrainConfig


def constant(numbers: tuple[Any, ...], device: torch.device) -> Tensor:
    """Numbers on a device: whole ones as int64, others as float64. A copy in every step would wait for a GPU."""
    import torch

    # torch.export makes a tensor of its own, which nothing after it could use.
    return (_constant.__wrapped__ if torch.compiler.is_exporting() else _constant)(numbers, device)


@functools.cache
def _constant(numbers: tuple[Any, ...], device: torch.device) -> Tensor:
    import numpy as np
    import torch

    with torch.inference_mode(False):
        return torch.as_tensor(np.asarray(numbers), device=device)


class Targets(NamedTuple):
    """What is to be learned of a data set's samples.

    Attributes:
        train: one row for each training sample: integers, float32 or float64.
        test: likewise for the test.
        names: one for each number that the model gives for a sample: classes, or quantities.
    """

    train: np.ndarray
    test: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    """Figures over a whole test set.

    Attributes:
        metrics: ``loss``, and every figure of the task by name.
        images: samples counted.
        per_class: figure -> one number per class; empty where there are no classes.
        confusion: samples, or the pixels of masks, by true class (row) and predicted class (column); empty where there
            are no classes.
    """

    metrics: dict[str, float]
    images: int
    per_class: dict[str, list[float]] = field(default_factory=dict)
    confusion: list[list[int]] = field(default_factory=list)


class Task(Protocol):
    """What a batch, a loss, an evaluation and a prediction are.

    A data set's samples are rows of named columns: ``images``, which the model is given, and one that it learns.

    Attributes:
        spec: its facts.
        target: name of the column that is learned, such as ``labels``.
        rule: for error messages, what that column must be, such as "for each image a whole number from 0".
    """

    spec: ClassVar[TaskSpec]
    target: ClassVar[str]
    rule: ClassVar[str]

    def __init__(self, config: TrainConfig, facts: Facts | None = None) -> None:
        """Be the task of a run on a data set, whose facts are whole once it has been read."""

    @classmethod
    def targets(cls, train: Any, test: Any, names: Sequence[Any] | None) -> Targets:
        """Check the targets that a data set's function returned.

        Args:
            train: what it returned beside the training images.
            test: beside the test images.
            names: of the model's outputs, as returned; None without.

        Raises:
            ValueError: saying what they are, where they break :attr:`rule`.
        """

    def counts(self, targets: Tensor) -> Tensor | None:
        """How much each sample counts in the mean of the losses: int64, shape (N,), of targets (N, ...).

        None when each counts 1.
        """

    def loss(self, outputs: Tensor, targets: Tensor, divisor: float) -> Tensor:
        """The sum of a micro-batch's losses, divided by ``divisor``; a scalar, differentiable.

        Args:
            outputs: what the model gives, (B, ...).
            targets: rows of the target column, (B, ...).
            divisor: a micro-batch's mean share of what its global batch counts: the mean of what this returns, over all
                micro-batches on all ranks, is the global batch's mean loss. Where each sample counts 1, it is B.
        """

    def tally(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Counts of a part of the test set that add up over all parts: integers, or float64 sums, of fixed shape."""

    def evaluation(self, tally: Mapping[str, Tensor], images: int) -> Evaluation:
        """The figures of the whole test set, of that many samples, from the sums of :meth:`tally`, on the CPU."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """What a trained model answers: floats (B, names), probabilities or values in the units of the targets; or of
        masks, the number of each pixel's class, uint8 (B, side, side)."""
