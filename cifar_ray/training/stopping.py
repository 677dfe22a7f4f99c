"""Stop a run between two steps, on every rank after the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from cifar_ray.strategies.worker import Worker


class StoppedError(Exception):
    """The run has stopped between two steps on request; its checkpoint is written."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"stopped after step {step}")


class Stopper:
    """Broadcasts rank 0's decision to stop, so that all ranks leave after the same step.

    The answer is sent in one step and read in the next, so no rank waits for it. Reading it keeps the ranks within
    one step of each other, on a GPU as well, where they would queue work ahead; so it has a process group of its own
    on the CPU. A run that can never be asked to stop has neither the group nor the message.

    Attributes:
        leaving: whether all ranks have agreed to stop.
    """

    def __init__(self, worker: Worker, asked: Callable[[], bool] | None, last_step: int) -> None:
        self._last_step = last_step
        self._rank = worker.rank
        self._asked = asked
        self._together = asked is not None and worker.world_size > 1
        self._group: Any = dist.new_group(backend="gloo") if self._together else None
        self._answer = torch.zeros(1, dtype=torch.uint8)
        self._sent: Any = None
        self.leaving = False

    def agreed(self) -> bool:
        """Return whether all ranks stop after this step or as soon as they can. Every rank calls it once per step."""
        if self.leaving or self._asked is None:
            return self.leaving
        if not self._together:
            self.leaving = self._asked()
            return self.leaving
        if self._sent is not None:
            self._sent.wait()
            self.leaving = bool(self._answer.item())
        if not self.leaving:
            if self._rank == 0:
                self._answer.fill_(self._asked())
            self._sent = dist.broadcast(self._answer, src=0, group=self._group, async_op=True)
        return self.leaving

    def leave(self, step: int) -> None:
        """Stop after ``step`` if all ranks have agreed to. The checkpoint of this step must be written.

        Raises:
            StoppedError: on every rank alike, unless nothing is left to train.
        """
        if self.leaving and step < self._last_step:
            raise StoppedError(step)
