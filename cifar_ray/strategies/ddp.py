"""PyTorch's DistributedDataParallel: bucketed all-reduce, overlapped with the backward pass.

Label: close; different with a ``comm_hook``. The mean gradient is that of one worker with the whole global
batch, added up in another order; batch-norm statistics are those of each worker's own images unless
``--sync-batchnorm``. PyTorch's hooks send gradients as float16 or bfloat16, or as matrices of rank 1 with what
they leave out carried over to the next step (``powersgd``: Vogels et al. 2019, after ten plain steps, and ten more
when a run is resumed).
Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
Cost per step: messages ``buckets``, bytes ``G``. One all-reduce per bucket of ``--bucket-cap-mb`` (25 MiB),
which together hold every gradient once (G bytes); half of that with ``comm_hook`` fp16 or bf16. With
``--accumulate`` only the last micro-batch is followed by an exchange. For a model of the user's own a message more says
which parameters a rank has used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Literal

import torch.distributed as dist
from pydantic import Field
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import is_own
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.protocol import StrategyContext
from cifar_ray.strategies.replicas import Replicas

Hook = Annotated[
    Literal["none", "fp16", "bf16", "powersgd"],
    Field(description="Compression of gradients by DDP before it sends them"),
]
_HOOKS: dict[str, Any] = {
    "none": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "powersgd": powerSGD_hook.powerSGD_hook,
}


def _marking(mark: Callable[[str], None], hook: Any) -> Any:
    """A hook that marks the end of the backward pass before it sends the last bucket: DDP then waits for all."""

    def marking(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
        if bucket.is_last():
            mark("backward")
        return hook(state, bucket)

    return marking


class DDP(Replicas):
    """See the module."""

    warm_ups = 2  # buckets get their layout before the second pass

    def __init__(self, context: StrategyContext, *, comm_hook: Hook = "none") -> None:
        super().__init__(context)
        self._power: powerSGD_hook.PowerSGDState | None = None
        if self.world_size == 1:
            return
        config, device = context.config, context.worker.device
        replica = DistributedDataParallel(
            self._call,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_cap_mb,
            find_unused_parameters=is_own(config.model),  # others use all of theirs
            gradient_as_bucket_view=True,
        )
        # Batch norm's running statistics are needed at an evaluation or a checkpoint, not in every step.
        replica.broadcast_buffers = False
        if comm_hook == "powersgd":  # the first gradients change too fast for it
            self._power = powerSGD_hook.PowerSGDState(dist.group.WORLD, start_powerSGD_iter=10)
        replica.register_comm_hook(self._power, _marking(context.mark, _HOOKS[comm_hook]))
        self._call = replica

    @staticmethod
    def check(config: ResolvedConfig, decided: Decided) -> None:
        if config.compile and config.bucket_cap_mb < 1:  # of its first bucket, along which torch.compile cuts
            raise ConfigError("bucket_cap_mb", f"must be at least 1 with --compile, got {config.bucket_cap_mb:g}")

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        if isinstance(self._call, DistributedDataParallel) and not last:
            return self._call.no_sync()
        return nullcontext()

    def finish_backward(self) -> None:
        """Several ranks have marked its end before they waited for each other."""
        if self.world_size == 1:
            super().finish_backward()

    def exchange(self) -> None:
        """DDP has exchanged the gradients during the backward pass."""

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        super().load(weights, state)
        if self._power is not None:  # what it has carried over belongs to other gradients
            self._power.iter = 0
            for memory in (self._power.error_dict, self._power.p_memory_dict, self._power.q_memory_dict):
                memory.clear()


STRATEGY = DDP
