"""What the strategies have in common whose workers train shared weights at their own pace.

A worker computes its slice of a global batch and applies its gradient at once, with the learning rate divided by
the number of workers: W gradients then move the weights as far as one step of the synchronous strategies does with
their mean. It is our own rule. The learning rate is divided rather than the gradient because AdamW's step
does not depend on the scale of the gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.data.loader import MicroBatch
from cifar_ray.strategies.gradients import layout, views
from cifar_ray.strategies.protocol import Differs, StrategyContext
from cifar_ray.strategies.replicas import Replicas

_PATIENCE = timedelta(days=365)
"""A worker may be slower than others by any time. One that has died closes its connection, which ends the wait."""


class Asynchronous(Replicas):
    """Its parameters lie one after the other in ``vector``; a subclass says who else has a part in it.

    Attributes:
        vector: all parameters, float32 of shape (N,), on the device.
        loss: of the latest :meth:`gradients`.
    """

    differs: Differs = "weights"
    synchronous = False

    def __init__(self, context: StrategyContext) -> None:
        if context.worker.world_size > 1:  # the timeout of the process group is for workers that are in step
            self._patient: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
        super().__init__(context)
        self.rank = context.worker.rank
        self.vector = self.room(sum(parameter.numel() for parameter in self.model.parameters()))
        self.loss = torch.zeros(())
        for parameter, view in zip(self.model.parameters(), views(self.vector, layout(self.model))):
            view.copy_(parameter.detach())
            parameter.data = view

    def room(self, size: int) -> Tensor:
        """A vector for all parameters, of this shape (size,)."""
        return torch.empty(size, device=self.context.worker.device)

    def gradients(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        self.loss = super().gradients(micro_batches)
        return self.loss

    def exchange(self) -> None:
        """Exchange nothing: no rank waits for another's gradient."""

    def losses(self, loss: Tensor) -> list[float]:
        """The latest known loss of every rank, without waiting; this rank's ``loss`` for one not heard of yet."""
        mine = loss.item()
        others = self.known_losses()
        return [mine if rank == self.rank or other is None else other for rank, other in enumerate(others)]

    @abstractmethod
    def known_losses(self) -> Sequence[float | None]:
        """The latest loss of every rank; None for a rank not heard of yet."""

    def barrier(self) -> None:
        """Wait until every rank is here, as long as it takes.

        Raises:
            RuntimeError: when a rank has died.
        """
        if self.world_size > 1:
            dist.barrier(self._patient)
