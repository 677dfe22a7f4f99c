"""Every rank takes optimizer steps of its own, and every few steps the replicas are averaged.

Label: different. Between two averages the replicas drift apart; the fewer the averages, the less is sent.
Source: Lin et al. 2018, "Don't Use Large Mini-Batches, Use Local SGD" (without its start of synchronous steps);
Yu, Jin and Yang 2019 for averaging the momentum too.
Cost per step: messages ``1 / N``, bytes ``(G + O + B) / N``. One all-reduce every ``sync_every`` N steps:
of all weights, which are as large as the gradients (G bytes), of the optimizer's state (O bytes: G for SGD's
momentum, twice that for AdamW) and of batch norm's running statistics (B bytes).

The replicas are averaged after every N-th step of an epoch and at its end, whether a checkpoint is written or not.
After an average nothing is left that belongs to one worker. A checkpoint of ``--checkpoint-every`` and a requested
stop wait for the next one, at most N - 1 steps, so neither changes what is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from cifar_ray.config.schema import Count
from cifar_ray.strategies.gradients import average_with_state
from cifar_ray.strategies.protocol import Differs, StrategyContext
from cifar_ray.strategies.replicas import Replicas


class LocalSGD(Replicas):
    """See the module."""

    differs: Differs = "weights"
    _apart = 0  # steps since the last average

    def __init__(
        self,
        context: StrategyContext,
        *,
        sync_every: Annotated[Count, Field(description="Optimizer steps between averages of weights and momentum")] = 8,
    ) -> None:
        super().__init__(context)
        self._sync_every = sync_every

    def exchange(self) -> None:
        """Gradients stay where they are."""

    @property
    def may_pause(self) -> bool:
        return self._apart == 0

    def step(self) -> None:
        super().step()
        self._apart += 1
        if self._apart == self._sync_every:
            self.consolidate()
        self.context.mark("communication")

    def consolidate(self) -> None:
        if self._apart:  # the mean of equal numbers may differ from them in the last bit
            statistics = [buffer for buffer in self.buffers() if buffer.is_floating_point() or buffer.is_complex()]
            average_with_state([*self.learning, *statistics], self.optimizer)
            self._apart = 0

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        super().load(weights, state)
        self._apart = 0


STRATEGY = LocalSGD
