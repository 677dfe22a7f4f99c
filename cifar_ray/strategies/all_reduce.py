"""One all-reduce for every parameter after the backward pass, and the sum divided by the world size.

Label: close. The mean gradient is that of one worker with the whole global batch, added up in another
order; batch-norm statistics are those of each worker's own images unless ``--sync-batchnorm``.
Source: part 2b of the group report "Distributed Training of VGG-11 on CIFAR-10".
Cost per step: messages ``P``, bytes ``G``. Each rank hands every one of P gradients, G bytes in all, to a
collective; a ring sends 2 (W - 1) / W times that.
"""

from __future__ import annotations

import torch.distributed as dist

from cifar_ray.strategies.replicas import Replicas


class AllReduce(Replicas):
    """See the module."""

    def exchange(self) -> None:
        for gradient in self.flat_gradients():
            dist.all_reduce(gradient)
            gradient /= self.world_size


STRATEGY = AllReduce
