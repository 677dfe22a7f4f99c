"""The same weights, to the last bit, at 1, 2, 4, ... workers: shards of a fixed number, added up in a fixed tree.

Label: exact: for any power-of-two number of workers up to ``shards``, on one node or several,
interrupted and resumed at another number or not, on CPUs of one kind, with the same threads per worker and the same
libraries.
Source: our own combination of recursive doubling (Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective
Communication Operations in MPICH") with logical shards; docs/exactness.md has the argument.
Cost per step: messages ``log2(W)``, bytes ``log2(W) * (G + B + 4)``. Each rank exchanges one vector with a
partner log2(W) times: the gradients (G bytes), the batch statistics of batch norm (B bytes) and the loss.

Every global batch is cut into ``shards`` parts. Each passes through the model alone, on whichever rank
computes it: with its own batch statistics, and dropout drawn from (seed, step, shard). The shards' vectors are added up
pairwise, shard 0 with 1, 2 with 3, and so on up a binary tree. The lower levels are on one rank; the upper ones are
exchanges with rank XOR 1, 2, 4, ..., after which both partners hold the same sum, since addition is commutative to
the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.schema import Count
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data.loader import DataShard, MicroBatch
from cifar_ray.strategies.base import Base
from cifar_ray.strategies.gradients import (
    drop_unused,
    flat_gradients,
    learning,
    presence,
    scatter_back,
    swap,
    without_gradient,
)
from cifar_ray.strategies.protocol import StrategyContext
from cifar_ray.strategies.worker import Worker, autocast, seed


class Reproducible(Base):
    """See the module."""

    cannot = frozenset({"counted", "repeated"})
    cut = "strategy_options.shards"
    cpus = 1  # threads change the order of sums, and more workers on a node would leave each of them fewer

    def __init__(
        self,
        context: StrategyContext,
        *,
        shards: Annotated[
            Count, Field(description="Shards of a global batch, at any number of workers; a power of two")
        ] = 4,
    ) -> None:
        super().__init__(context)
        self._shards = shards
        norms: list[Any] = [norm for norm in context.model.modules() if isinstance(norm, _BatchNorm)]
        self._norms = [norm for norm in norms if norm.running_mean is not None]
        self._momenta = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            norm.momentum = 1.0  # a forward pass then leaves the statistics of its own shard in the buffers
            norm.register_forward_hook(self._passed)
        self._passes: set[nn.Module] = set()
        self._learning = learning(context.model)
        if context.worker.device.type == "cuda":
            torch.backends.cudnn.deterministic = True

    @staticmethod
    def check(config: ResolvedConfig, decided: Decided) -> None:
        shards, batch, workers = config.strategy_options["shards"], config.global_batch_size, decided.world_size
        if shards & (shards - 1):
            raise ConfigError("strategy_options.shards", f"must be a power of two, got {shards}")
        if shards % workers:
            raise ConfigError(
                "strategy_options.shards",
                f"must be a multiple of the workers, so that each has as many, got {shards} for {workers}",
            )
        if batch % shards:
            raise ConfigError(
                "strategy_options.shards", f"must divide the global batch of {batch} images, got {shards}"
            )

    @staticmethod
    def at_once(config: ResolvedConfig) -> int:
        return config.global_batch_size // config.strategy_options["shards"]

    @staticmethod
    def data_shard(config: ResolvedConfig, worker: Worker) -> DataShard:
        return DataShard(worker.rank, worker.world_size, config.strategy_options["shards"] // worker.world_size)

    def gradients(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        before = [buffer.clone() for buffer in self._statistics()]
        batches = [norm.num_batches_tracked.clone() for norm in self._norms]
        self._used: set[int] = set()
        # The mean over shards of equal size, a power of two of them, is the sum but for an exact division.
        own = _tree(map(self._shard, micro_batches))
        self.context.mark("backward")
        vector = self._across_ranks(own)
        self.context.mark("communication")
        counts, passes = vector.new_empty(len(self._learning)), vector.new_empty(len(self._norms))
        gradients = flat_gradients(self._learning)
        scatter_back(vector[1:], [counts, passes, *gradients, *self._statistics()])
        for gradient in gradients:
            gradient /= self._shards
        drop_unused(self._learning, [at for at in range(len(self._learning)) if at not in self._used], counts)
        for at, (norm, momentum, old, count) in enumerate(zip(self._norms, self._momenta, batches, passes)):
            norm.num_batches_tracked.copy_(old + (count > 0))
            share = 1 / norm.num_batches_tracked.clamp(min=1) if momentum is None else momentum
            for buffer, was in zip((norm.running_mean, norm.running_var), before[2 * at : 2 * at + 2]):
                buffer.copy_(torch.where(count > 0, was.lerp(buffer / count.clamp(min=1), share), was))
        self.context.mark("backward")
        return vector[0] / self._shards

    def _statistics(self) -> list[Tensor]:
        """Batch norm's running statistics, two of each layer."""
        return [buffer for norm in self._norms for buffer in (norm.running_mean, norm.running_var)]

    def _passed(self, norm: nn.Module, *_: Any) -> None:
        """Note that a batch norm has left the statistics of a shard in its buffers."""
        if norm.training:
            self._passes.add(norm)

    def _shard(self, micro_batch: MicroBatch) -> Tensor:
        """One shard's loss, gradients and batch statistics, as one vector; before them, which of those there are."""
        context = self.context
        context.mark("data")
        self.model.zero_grad()
        self._passes.clear()
        seed(micro_batch.seed, context.worker.device)
        with autocast(context.decided.precision, context.worker.device):
            loss = context.task.loss(self.model(micro_batch.inputs), micro_batch.targets, micro_batch.divisor)
        context.mark("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        missing = without_gradient(self._learning)
        self._used.update({*range(len(self._learning))}.difference(missing))
        has = presence(len(self._learning), missing, loss.device)
        idle = [at for at, norm in enumerate(self._norms) if norm not in self._passes]
        passed = presence(len(self._norms), idle, loss.device)
        statistics = [
            buffer if norm in self._passes else torch.zeros_like(buffer)  # that of an earlier shard, or of no batch
            for norm in self._norms
            for buffer in (norm.running_mean, norm.running_var)
        ]
        vector = torch.cat([loss.detach().view(1), has, passed, *flat_gradients(self._learning), *statistics])
        context.mark("backward")
        return vector

    def _across_ranks(self, vector: Tensor) -> Tensor:
        """The sum over all ranks, by exchanges between partners whose numbers differ in one bit."""
        distance = 1
        while distance < self.world_size:
            partner = self.context.worker.rank ^ distance
            theirs = torch.empty_like(vector)
            swap(vector, partner, theirs, partner)
            vector = vector + theirs
            distance *= 2
        return vector

    def consolidate(self) -> None:
        """All ranks have the same to the last bit."""


def _tree(vectors: Iterable[Tensor]) -> Tensor:
    """The sum of a power of two of vectors, added up pairwise; at most one waits on each level."""
    waiting: list[Tensor] = []
    for count, vector in enumerate(vectors, start=1):
        while count % 2 == 0:
            vector, count = waiting.pop() + vector, count // 2
        waiting.append(vector)
    assert len(waiting) == 1, "as many shards as a power of two"
    return waiting[0]


STRATEGY = Reproducible
