"""All gradients as one vector around a ring of isend and irecv: first the sums, then the results.

Label: close. The mean gradient is that of one worker with the whole global batch, added up in another
order; batch-norm statistics are those of each worker's own images unless ``--sync-batchnorm``.
Source: the isend/irecv part of the group report "Distributed Training of VGG-11 on CIFAR-10", arranged as the ring
of Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
Cost per step: messages ``2 * (W - 1)``, bytes ``2 * (W - 1) / W * G``. The vector of G bytes is cut into W
chunks; in every hop each rank sends one of them to its right and gets another from its left.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cifar_ray.strategies.gradients import scatter_back, swap
from cifar_ray.strategies.replicas import Replicas


class SendRecv(Replicas):
    """See the module."""

    def exchange(self) -> None:
        gradients = self.flat_gradients()
        vector = torch.cat(gradients)
        rank, size = self.context.worker.rank, self.world_size
        chunks = vector.tensor_split(size)  # each is added up by one rank after the other, in one order

        def hop(sent: int, received: Tensor) -> None:
            swap(chunks[sent % size], (rank + 1) % size, received, (rank - 1) % size)

        for step in range(size - 1):  # afterwards this rank has the whole sum of chunk rank + 1
            chunk = chunks[(rank - step - 1) % size]
            arrived = torch.empty_like(chunk)
            hop(rank - step, arrived)
            chunk += arrived
        for step in range(size - 1):
            hop(rank + 1 - step, chunks[(rank - step) % size])
        vector /= size
        scatter_back(vector, gradients)


STRATEGY = SendRecv
