"""The workers of one node write their steps into weights that they share in memory, without any lock.

Label: different. A gradient is of weights that others change meanwhile, and steps that coincide may overwrite each
other in part. Every worker has an optimizer state of its own and steps with the learning rate divided by the number
of workers, so that a step of every worker moves the weights as far as one synchronous step (our own rule).
An evaluation or a checkpoint averages the optimizers' states, so that nothing is left that belongs to one worker.
Source: Recht et al. 2011, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent" (there for
sparse gradients).
Cost per step: messages ``0``, bytes ``0``. Nothing is sent; the workers contend for the node's memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data.loader import MicroBatch
from cifar_ray.strategies.asynchronous import Asynchronous
from cifar_ray.strategies.gradients import average_with_state, gather
from cifar_ray.strategies.protocol import Parts, StrategyContext

_ALIGNED = 64  # bytes; the weights begin at a cache line


class Hogwild(Asynchronous):
    """See the module."""

    differs = "statistics"
    cannot = frozenset({"dtype"})

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._staleness = torch.zeros(3, dtype=torch.float64)  # the sum over this rank's steps, their number, the most

    @staticmethod
    def check(config: ResolvedConfig, decided: Decided) -> None:
        if decided.placement.nodes > 1:
            raise ConfigError("topology", f"must be on one node (1xWORKERS) for hogwild, got {decided.topology}")
        if decided.device == "cuda":
            raise ConfigError("device", "must be cpu for hogwild, whose workers share the node's memory")
        if not hasattr(os, "memfd_create"):
            raise ConfigError("strategy", "hogwild needs Linux, for memory that processes share without a file")

    def room(self, size: int) -> Tensor:
        """The shared weights. Behind them, every rank has a place for its steps and one for its latest loss."""
        words = 8 * self.world_size
        steps = -(-4 * size // _ALIGNED) * _ALIGNED
        # Memory without a name that could outlive the processes.
        descriptor = os.memfd_create("hogwild") if self.rank == 0 else -1
        where = [f"/proc/{os.getpid()}/fd/{descriptor}"]
        if self.rank == 0:
            os.ftruncate(descriptor, steps + 2 * words)
        if self.world_size > 1:
            dist.broadcast_object_list(where, src=0)
        if self.rank != 0:
            descriptor = os.open(where[0], os.O_RDWR)
        memory = mmap.mmap(descriptor, steps + 2 * words)
        self.barrier()  # every rank has it
        os.close(descriptor)
        self._steps = torch.frombuffer(memory, dtype=torch.int64, count=self.world_size, offset=steps)
        self._losses = torch.frombuffer(memory, dtype=torch.float64, count=self.world_size, offset=steps + words)
        return torch.frombuffer(memory, dtype=torch.float32, count=size)

    def gradients(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        self._before = self._steps.sum()
        return super().gradients(micro_batches)

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] /= self.world_size
        staleness = int(self._steps.sum() - self._before)  # steps of others: its own come below
        self._staleness += torch.tensor([staleness, 1, 0])
        self._staleness[2].clamp_(min=staleness)
        super().step()
        self._losses[self.rank] = self.loss
        self._steps[self.rank] += 1

    def known_losses(self) -> Sequence[float | None]:
        return [loss if steps else None for steps, loss in zip(self._steps.tolist(), self._losses.tolist())]

    def consolidate(self) -> None:
        self.barrier()  # the last step is in the weights
        average_with_state(self.buffers(), self.optimizer)

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        super().load(weights, state)  # every rank writes the same
        self._steps[self.rank] = 0
        self.barrier()  # every rank has written them before the first step

    def figures(self, parts: Parts = ()) -> dict[str, float]:
        updates, steps, most = zip(*(each.tolist() for each in gather(self._staleness)))
        return {"staleness/mean": sum(updates) / sum(steps), "staleness/max": max(most)} if any(steps) else {}


STRATEGY = Hogwild
