"""All gradients as one vector around a ring of isend and irecv: first the sums, then the results.

Label: close. The mean gradient is that of one worker with the whole global batch, added up in another
order; batch-norm statistics are those of each worker's own images unless ``--sync-batchnorm``.
Source: the isend/irecv part of the group report "Distributed Training of VGG-11 on CIFAR-10", arranged as the ring
of Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
Cost per step: messages ``2 * (W - 1)``, bytes ``2 * (W - 1) / W * G``. The vector of G bytes is cut into W
chunks; in every hop each rank sends one of them to its right and gets another from its left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cifar_ray.strategies.gradients import scatter_back, swap
from cifar_ray.strategies.replicas import Replicas


class SendRecv(Replicas):
    """See the module."""

    def exchange(self) -> None:
        gradients = self.flat_gradients()
        vector = torch.cat(gradients)
        self._around(vector)
        vector /= self.world_size
        scatter_back(vector, gradients)

    def _around(self, vector: Tensor) -> None:
        """Leave the sum over the ranks in ``vector``; every number of it is added up by one rank, in one order."""
        chunks = vector.tensor_split(self.world_size)
        rank, hops = self.context.worker.rank, range(self.world_size - 1)
        for hop in hops:  # afterwards this rank has the whole sum of chunk rank + 1
            chunk = self._chunk(chunks, rank - hop - 1)
            arrived = torch.empty_like(chunk)
            self._hop(self._chunk(chunks, rank - hop), arrived)
            chunk += arrived
        for hop in hops:
            self._hop(self._chunk(chunks, rank + 1 - hop), self._chunk(chunks, rank - hop))

    def _chunk(self, chunks: Sequence[Tensor], number: int) -> Tensor:
        return chunks[number % self.world_size]

    def _hop(self, sent: Tensor, received: Tensor) -> None:
        rank = self.context.worker.rank
        swap(sent, (rank + 1) % self.world_size, received, (rank - 1) % self.world_size)


STRATEGY = SendRecv
