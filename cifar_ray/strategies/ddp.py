"""PyTorch's DistributedDataParallel: bucketed all-reduce, overlapped with the backward pass.

Label: close; different with a ``--comm-hook``. The mean gradient is that of one worker with the whole global
batch, added up in another order; batch-norm statistics are those of each worker's own images unless
``--sync-batchnorm``. PyTorch's hooks send gradients as float16 or bfloat16, or as matrices of rank 1 with what
they leave out carried over to the next step (``powersgd``: Vogels et al. 2019, after ten plain steps, and ten more
when a run is resumed).
Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
Cost per step: messages ``buckets``, bytes ``G``. One all-reduce per bucket of ``--bucket-cap-mb`` (25 MiB),
which together hold every gradient once (G bytes); half of that with ``--comm-hook fp16`` or ``bf16``. With
``--accumulate`` only the last micro-batch is followed by an exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from cifar_ray.strategies.protocol import StrategyContext
from cifar_ray.strategies.replicas import Replicas

_PLAIN_STEPS = 10
"""Steps before powersgd compresses; the first gradients change too fast for it."""


class DDP(Replicas):
    """See the module."""

    warm_ups = 2  # with a static graph, buckets get their layout in the second pass

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._replica: DistributedDataParallel | None = None
        self._power: powerSGD_hook.PowerSGDState | None = None
        if self.world_size == 1:
            return
        config, device = context.config, context.worker.device
        self._replica = DistributedDataParallel(
            context.model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_cap_mb,
            gradient_as_bucket_view=True,
            static_graph=config.accumulate == 1,  # it takes every backward pass for one that exchanges
        )
        # Batch norm's running statistics are needed at an evaluation or a checkpoint, not in every step.
        self._replica.broadcast_buffers = False
        if config.comm_hook == "powersgd":
            self._power = powerSGD_hook.PowerSGDState(dist.group.WORLD, start_powerSGD_iter=_PLAIN_STEPS)
            self._replica.register_comm_hook(self._power, powerSGD_hook.powerSGD_hook)
        elif config.comm_hook != "none":
            halves = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
            self._replica.register_comm_hook(None, halves[config.comm_hook])
        for parameter in filter(lambda each: each.requires_grad, context.model.parameters()):
            # The backward pass ends with the last gradient; what DDP then still waits for is not overlapped.
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _: context.mark("backward")
            )

    def forward(self, images: Tensor) -> Tensor:
        return (self._replica or self.model)(images)

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last or self._replica is None else self._replica.no_sync()

    def finish_backward(self) -> None:
        if self._replica is None:
            self.context.mark("backward")

    def exchange(self) -> None:
        """DDP has exchanged the gradients during the backward pass."""

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        super().load(weights, state)
        if self._power is not None:  # what it has carried over belongs to other gradients
            self._power.iter = 0
            for memory in (self._power.error_dict, self._power.p_memory_dict, self._power.q_memory_dict):
                memory.clear()


STRATEGY = DDP
