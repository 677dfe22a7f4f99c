"""The samples that a model got wrong with the highest probabilities, the same at any number of workers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cifar_ray.strategies.gradients import gather

MOST = 16
_LEVELS = 10_000  # ranks sum up in other orders: below four digits of a probability, the position decides


class Mistake(NamedTuple):
    """A sample that a model got wrong.

    Attributes:
        position: in the samples evaluated.
        label: number of the true class.
        predicted: number of the likeliest class.
        probability: of that class, to four digits.
    """

    position: int
    label: int
    predicted: int
    probability: float


class SurestMistakes:
    """Keeps the worst mistakes of a rank's samples, on its device.

    A row is a number that orders mistakes by probability and then by position, the true class, and the predicted one.
    """

    def __init__(self, samples: int, device: torch.device) -> None:
        self._samples = samples
        self._rows = torch.full((MOST, 3), -1, dtype=torch.int64, device=device)

    def add(self, predicted: Tensor, probability: Tensor, targets: Tensor, first: int) -> None:
        """Look at the samples from position ``first`` on.

        Args:
            predicted: the likeliest class of each; int64 (B,).
            probability: that of this class, or -1 where it is the true one; (B,).
            targets: the true classes; int64 (B,).
            first: position of the first.
        """
        level = torch.where(probability >= 0, (probability.double() * _LEVELS).round().long(), -1)
        position = first + torch.arange(len(level), device=level.device)
        order = torch.where(level >= 0, level * self._samples + self._samples - 1 - position, -1)
        rows = torch.cat([self._rows, torch.stack([order, targets, predicted], 1)])
        self._rows = rows[rows[:, 0].topk(MOST).indices]

    def gathered(self) -> tuple[Mistake, ...]:
        """Those of all ranks, the worst first; every rank returns the same."""
        rows = torch.cat(gather(self._rows))
        worst = rows[rows[:, 0].topk(MOST).indices]
        return tuple(
            Mistake(self._samples - 1 - order % self._samples, label, predicted, order // self._samples / _LEVELS)
            for order, label, predicted in worst.tolist()
            if order >= 0
        )
