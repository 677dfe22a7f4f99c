"""Every rank takes optimizer steps of its own, and every few steps the weights are averaged.

Label: different. Between two averages the replicas drift apart; the fewer the averages, the less is sent.
Source: Lin et al. 2018, "Don't Use Large Mini-Batches, Use Local SGD" (without its start of synchronous steps);
Yu, Jin and Yang 2019 for averaging the momentum too.
Cost per step: messages ``1 / N``, bytes ``G / N``. One all-reduce of all weights, which are as large as the
gradients (G bytes), every ``--sync-every`` N steps. An evaluation or a checkpoint averages momentum and
batch-norm statistics as well, so that nothing is left that belongs to one worker; the steps are counted anew from it.
"""

from __future__ import annotations

from cifar_ray.strategies.gradients import average, state_tensors
from cifar_ray.strategies.protocol import Differs
from cifar_ray.strategies.replicas import Replicas


class LocalSGD(Replicas):
    """See the module."""

    differs: Differs = "weights"
    _steps = 0

    def exchange(self) -> None:
        """Gradients stay where they are."""

    def step(self) -> None:
        super().step()
        self._steps += 1
        if self._steps % self.parts.config.sync_every == 0:
            average(self.model.parameters())
        self.parts.mark("communication")

    def publish(self) -> None:
        self._steps = 0
        average([*self.model.parameters(), *self.model.buffers(), *state_tensors(self.optimizer)])


STRATEGY = LocalSGD
