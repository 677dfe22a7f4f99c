"""Stopping between two steps, on every rank after the same one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cifar_ray.strategies.worker import Worker

if TYPE_CHECKING:
    from cifar_ray.training.setup import Job


class StoppedError(Exception):
    """The run has stopped between two steps because it was asked to; its checkpoint is written."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"stopped after step {step}")


class Stopper:
    """Brings all ranks to one answer, which rank 0 has heard from outside.

    Rank 0's answer is sent in one step and read in the next, so nobody waits for it. Reading it ties the ranks'
    processes to within a step of each other, on a GPU as well, where they would queue work ahead; that is why it
    has a process group of its own on the CPU. For a run that is never asked there is neither group nor message.
    """

    def __init__(self, worker: Worker, asked: Callable[[], bool] | None) -> None:
        self._rank = worker.rank
        self._asked = asked
        self._together = asked is not None and worker.world_size > 1
        self._group: Any = dist.new_group(backend="gloo") if self._together else None
        self._answer = torch.zeros(1, dtype=torch.uint8)
        self._sent: Any = None
        self.leaving = False

    def agreed(self) -> bool:
        """Whether all ranks leave at this step or as soon as they can; called once after each step, by every rank."""
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


def leave(job: Job) -> None:
    """End the run here if all ranks have agreed to; a checkpoint of this step has just been written.

    Raises:
        StoppedError: on every rank alike, unless there is nothing left to train.
    """
    if job.stopper.leaving and job.step < job.config.epochs * job.loader.steps_per_epoch:
        raise StoppedError(job.step)
