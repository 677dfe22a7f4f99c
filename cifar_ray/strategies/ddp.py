"""PyTorch's DistributedDataParallel: bucketed all-reduce, overlapped with the backward pass.

Label: close; different with a ``comm_hook``. The mean gradient is that of one worker with the whole global
batch, added up in another order; batch-norm statistics are those of each worker's own images unless
``--sync-batchnorm``. PyTorch's hooks send gradients as float16 or bfloat16, or as matrices of rank 1 with what
they leave out carried over to the next step (``powersgd``: Vogels et al. 2019, after ten plain steps, and ten more
when a run is resumed).
Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
Cost per step: messages ``buckets``, bytes ``G``. One all-reduce per bucket of ``--bucket-cap-mb`` (25 MiB),
which together hold every gradient once (G bytes); half of that with ``comm_hook`` fp16 or bf16. With
``--accumulate`` only the last micro-batch is followed by an exchange. In the last bucket one number for each parameter
says which ranks have a gradient for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.gradients import drop_unused, presence, without_gradient
from cifar_ray.strategies.protocol import StrategyContext
from cifar_ray.strategies.replicas import Replicas

_PLAIN_STEPS = 10
"""Steps before powersgd compresses; the first gradients change too fast for it."""


class _Counting(nn.Module):
    """The model, and a parameter more, whose gradient says which of the model's parameters have one."""

    def __init__(
        self, model: nn.Module, call: Callable[[Tensor], Tensor], parameters: int, device: torch.device
    ) -> None:
        super().__init__()
        self.model = model
        self._call = call
        self.has = nn.Parameter(torch.zeros(parameters, device=device))

    def forward(self, inputs: Tensor) -> Tensor:
        return self._call(inputs)


class _Report(torch.autograd.Function):
    """Backward pass with a gradient for ``parameter`` and None for the others, so that DDP counts all as done."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, gradient: Tensor, *others: Tensor) -> Tensor:
        ctx.gradients = (gradient, None, *[None for _ in others])
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return ctx.gradients


Hook = Annotated[
    Literal["none", "fp16", "bf16", "powersgd"],
    Field(description="Compression of gradients by DDP before it sends them"),
]


class DDP(Replicas):
    """See the module."""

    warm_ups = 2  # buckets get their layout before the second pass

    def __init__(self, context: StrategyContext, *, comm_hook: Hook = "none") -> None:
        super().__init__(context)
        self._replica: DistributedDataParallel | None = None
        self._power: powerSGD_hook.PowerSGDState | None = None
        if self.world_size == 1:
            return
        config, device = context.config, context.worker.device
        self._counting = _Counting(context.model, super().forward, len(self.learning), device)
        self._reported: set[Tensor] = set()
        self._replica = DistributedDataParallel(
            self._counting,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_cap_mb,
            gradient_as_bucket_view=True,
        )
        # Batch norm's running statistics are needed at an evaluation or a checkpoint, not in every step.
        self._replica.broadcast_buffers = False
        if comm_hook == "powersgd":
            self._power = powerSGD_hook.PowerSGDState(dist.group.WORLD, start_powerSGD_iter=_PLAIN_STEPS)
            self._replica.register_comm_hook(self._power, powerSGD_hook.powerSGD_hook)
        elif comm_hook != "none":
            halves = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
            self._replica.register_comm_hook(None, halves[comm_hook])
        if config.accumulate > 1:
            for parameter in self.learning:
                parameter.register_post_accumulate_grad_hook(self._reported.add)  # type: ignore[no-untyped-call]

    @staticmethod
    def check(config: ResolvedConfig, decided: Decided) -> None:
        if config.compile and config.bucket_cap_mb < 1:  # of its first bucket, along which torch.compile cuts
            raise ConfigError("bucket_cap_mb", f"must be at least 1 with --compile, got {config.bucket_cap_mb:g}")

    def forward(self, inputs: Tensor) -> Tensor:
        if self._replica is None:
            return super().forward(inputs)
        self._reported.clear()
        if self.context.config.accumulate == 1:  # those with a gradient afterwards are those of this pass
            for parameter in self.learning:
                parameter.grad = None
        return self._replica(inputs)

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last or self._replica is None else self._replica.no_sync()

    def exchange(self) -> None:
        """Complete the last bucket, which DDP has waited with: until here, the backward pass waits for no other rank.

        DDP exchanges a bucket once each of its parameters has reported, and waits for ever for one that the pass has
        not used. Its ``find_unused_parameters`` looks through the graph in every step and adds a collective. Here,
        those that are left report that they have nothing, and what the ranks have crosses in the last bucket.
        """
        missing, has = without_gradient(self.learning), self._counting.has
        silent = [self.learning[place] for place in missing]
        if self.context.config.accumulate > 1:
            silent = [parameter for parameter in self.learning if parameter not in self._reported]
        reported = presence(len(self.learning), missing, has.device)
        _Report.apply(has, reported, *silent).backward()  # type: ignore[no-untyped-call]
        assert has.grad is not None
        drop_unused(self.learning, missing, has.grad)
        has.grad = None

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        super().load(weights, state)
        if self._power is not None:  # what it has carried over belongs to other gradients
            self._power.iter = 0
            for memory in (self._power.error_dict, self._power.p_memory_dict, self._power.q_memory_dict):
                memory.clear()


STRATEGY = DDP
