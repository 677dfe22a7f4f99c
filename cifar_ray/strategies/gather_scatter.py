"""Gradients are gathered on rank 0, averaged there, and scattered, one parameter after the other.

Label: close. The mean gradient is that of one worker with the whole global batch, added up in another
order; batch-norm statistics are those of each worker's own images unless ``--sync-batchnorm``.
Source: part 2a of the group report "Distributed Training of VGG-11 on CIFAR-10".
Cost per step: messages ``2 * P``, bytes ``2 * G``. Each rank hands every one of P gradients, G bytes in all,
to a gather and gets it back from a scatter; all of it passes through rank 0, which sends and receives W - 1 times
as much as any other rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from cifar_ray.strategies.replicas import Replicas


class GatherScatter(Replicas):
    """See the module."""

    def exchange(self) -> None:
        for gradient in self.flat_gradients():
            if self.context.worker.rank != 0:
                dist.gather(gradient, dst=0)
                dist.scatter(gradient, src=0)
                continue
            gathered = [torch.empty_like(gradient) for _ in range(self.world_size)]
            dist.gather(gradient, gathered, dst=0)
            mean = torch.stack(gathered).mean(0)
            dist.scatter(gradient, [mean] * self.world_size, src=0)


STRATEGY = GatherScatter
