"""Stop a run between two steps, on every rank after the same step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from cifar_ray.strategies.worker import Worker

_EVERY_S, _MOST_STEPS = 0.25, 1000


class StoppedError(Exception):
    """The run has stopped between two steps on request; its checkpoint is written.

    Attributes:
        step: optimizer steps done.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"stopped after step {step}")


class Stopper:
    """Broadcasts rank 0's decision to stop, so that all ranks leave after the same step.

    The answer is sent in one step and read in the next, so no rank waits for it. It also says after how many steps the
    ranks talk again, so that short steps do not pay for it. Reading it keeps the ranks within one step of each other,
    on a GPU as well, where they would queue work ahead; so it has a process group of its own on the CPU. A run that
    can never be asked to stop has neither the group nor the message.

    Attributes:
        leaving: whether all ranks have agreed to stop.
    """

    def __init__(self, worker: Worker, asked: Callable[[], bool] | None, last_step: int) -> None:
        self._last_step = last_step
        self._rank = worker.rank
        self._asked = asked
        self._together = asked is not None and worker.world_size > 1
        self._group: Any = dist.new_group(backend="gloo") if self._together else None
        self._answer = torch.zeros(1, dtype=torch.int32)  # steps until the next one; 0: stop
        self._sent: Any = None
        self._steps = self._left = 1
        self._since = time.perf_counter()
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
            self._sent = None
            self._steps = self._left = int(self._answer.item())
            self.leaving = self._left == 0
        elif self._left > 1:
            self._left -= 1
        else:
            if self._rank == 0:
                now = time.perf_counter()
                steps = int(
                    _EVERY_S * (self._steps + 1) / max(now - self._since, 1e-9)
                )  # by those since the last answer
                self._since = now
                self._answer.fill_(0 if self._asked() else min(max(steps, 1), _MOST_STEPS))
            self._sent = dist.broadcast(self._answer, src=0, group=self._group, async_op=True)
        return self.leaving

    def leave(self, step: int) -> None:
        """Stop after ``step`` if all ranks have agreed to. The checkpoint of this step must be written.

        Raises:
            StoppedError: on every rank alike, unless nothing is left to train.
        """
        if self.leaving and step < self._last_step:
            raise StoppedError(step)
