"""The common part of data-parallel strategies: every rank holds the whole model and computes its share of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cifar_ray.config.option import is_own
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data.loader import DataShard, MicroBatch
from cifar_ray.strategies import compiling
from cifar_ray.strategies.gradients import flat, flat_gradients, learning, used_on_any_rank
from cifar_ray.strategies.protocol import Differs, Strategy, StrategyContext
from cifar_ray.strategies.worker import Worker, autocast, seed


class Replicas(Strategy):
    """Plain forward and backward passes; a subclass exchanges the gradients.

    With one worker nothing is exchanged: every such strategy is plain training.
    """

    differs: Differs = "statistics"

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self.learning = learning(self.model)
        self._call: nn.Module = self.model
        if context.config.compile:
            self._call = compiling.Compiled(self.model, context.worker.device)

    @staticmethod
    def data_shard(config: ResolvedConfig, worker: Worker) -> DataShard:
        return DataShard(worker.rank, worker.world_size, config.accumulate)

    def gradients(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        context = self.context
        count = context.config.accumulate
        total = torch.zeros((), device=context.worker.device)
        for number, micro_batch in enumerate(micro_batches, start=1):
            context.mark("data")
            seed(micro_batch.seed, context.worker.device, context.worker.gpus)
            with self.accumulating(last=number == count):
                with autocast(context.decided.precision, context.worker.device):
                    outputs = self.forward(micro_batch.inputs)
                    loss = context.task.loss(outputs, micro_batch.targets, micro_batch.divisor) / count
                context.mark("forward")
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            if number < count:
                if number == 1 and context.config.compile:  # others are added, and a CUDA graph would overwrite them
                    for parameter in self.learning:
                        parameter.grad = None if parameter.grad is None else parameter.grad.clone()
                context.mark("backward")
        self.finish_backward()
        if self.world_size > 1:
            self.exchange()
        context.mark("communication")
        return total

    def forward(self, inputs: Tensor) -> Tensor:
        """What the model gives for inputs (B, ...)."""
        return self._call(inputs)

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        """Context manager around the passes of one micro-batch; only the ``last`` may exchange gradients."""
        return nullcontext()

    def finish_backward(self) -> None:
        """Called after the last backward pass; the time from here on is communication."""
        self.context.mark("backward")

    @abstractmethod
    def exchange(self) -> None:
        """Make every rank's ``.grad`` the mean over the ranks, in which a rank without one counts as zero.

        A parameter that no rank has used keeps None, so that the optimizer leaves it alone.
        """

    def flat_gradients(self) -> list[Tensor]:
        """One vector for each parameter that some rank has used, which :meth:`exchange` replaces by its mean.

        Built-in models use all of theirs in every step. Of others, the ranks first tell each other in a message.
        """
        is_sure = not is_own(self.context.config.model)
        return flat_gradients(self.learning if is_sure else used_on_any_rank(self.learning))

    def buffers(self) -> list[Tensor]:
        """The buffers that may change: not those of frozen modules, which the mean of equal numbers would, by a bit."""
        changing = (module for module in self.model.modules() if module.training)
        return [buffer for module in changing for buffer in module.buffers(recurse=False)]

    def consolidate(self) -> None:
        """Copy rank 0's batch-norm statistics to all ranks; their parameters are equal already."""
        if self.world_size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(flat(buffer), src=0)
