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
from itertools import chain
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_own
from cifar_ray.config.schema import Count
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data.loader import DataShard, MicroBatch
from cifar_ray.strategies.gradients import flat, flat_gradients, learning, scatter_back, swap
from cifar_ray.strategies.protocol import Strategy, StrategyContext
from cifar_ray.strategies.worker import Worker, autocast, seed


class Reproducible(Strategy):
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
        norms = [norm for norm in norms if norm.training and norm.running_mean is not None]  # not those that are frozen
        self._momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0  # a forward pass then leaves the statistics of its own shard in the buffers
        # Of each, the number of passes and the running statistics.
        self._statistics = [(norm.num_batches_tracked, norm.running_mean, norm.running_var) for norm in norms]
        self._learning = learning(context.model)
        self._unsure = self._learning if is_own(context.config.model) else []  # built-in models leave none out
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
        before = [[buffer.clone() for buffer in each] for each in self._statistics]
        # The mean over shards of equal size, a power of two of them, is the sum but for an exact division.
        vector, distance = _tree(map(self._shard, micro_batches)), 1
        self.context.mark("backward")
        while distance < self.world_size:  # partners' numbers differ in one bit
            partner = self.context.worker.rank ^ distance
            theirs = torch.empty_like(vector)
            swap(vector, partner, theirs, partner)
            vector = vector + theirs
            distance *= 2
        self.context.mark("communication")
        gradients, used = flat_gradients(self._learning), vector.new_empty(len(self._unsure))
        scatter_back(vector[1:], [used, *gradients, *map(flat, chain(*self._statistics))])
        for gradient in gradients:
            gradient /= self._shards
        for parameter, shards in zip(self._unsure, used.tolist()):
            if not shards:  # the optimizer then leaves it alone
                parameter.grad = None
        for (passed, *averages), (batches, *old), momentum in zip(self._statistics, before, self._momenta):
            passes = passed.clone()
            passed.copy_(batches + (passes > 0))
            share = 1 / passed.clamp(min=1) if momentum is None else momentum
            for buffer, was in zip(averages, old):
                buffer.copy_(torch.where(passes > 0, was.lerp(buffer / passes.clamp(min=1), share), was))
        self.context.mark("backward")
        return vector[0] / self._shards

    def _shard(self, micro_batch: MicroBatch) -> Tensor:
        """One shard's loss, which parameters it has used, its gradients and its batch statistics, as one vector."""
        context = self.context
        context.mark("data")
        self.model.zero_grad()
        for buffer in chain(*self._statistics):
            buffer.zero_()
        seed(micro_batch.seed, context.worker.device)
        with autocast(context.decided.precision, context.worker.device):
            loss = context.task.loss(self.model(micro_batch.inputs), micro_batch.targets, micro_batch.divisor)
        context.mark("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        used = torch.tensor([float(parameter.grad is not None) for parameter in self._unsure], device=loss.device)
        statistics = map(flat, chain(*self._statistics))
        vector = torch.cat([loss.detach().view(1), used, *flat_gradients(self._learning), *statistics])
        context.mark("backward")
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
