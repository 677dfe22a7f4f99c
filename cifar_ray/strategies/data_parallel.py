"""PyTorch's DataParallel: one process, which spreads every batch over its GPUs and gathers the logits.

Label: close. The mean gradient is that of one GPU, added up in another order; batch-norm statistics are those of
the first GPU's share.
Source: the studies "A Comparative Analysis of Distributed Training Strategies" and "How does training ResNet50 on
CIFAR-10 improve with multiple GPUs?".
Cost per step: messages ``0``, bytes ``0``. Nothing leaves the process; between its GPUs, each step copies all
weights to every other GPU and all gradients back, and the images and logits of its share.
"""

from __future__ import annotations

from torch import Tensor, nn

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.protocol import StrategyContext
from cifar_ray.strategies.replicas import Replicas
from cifar_ray.strategies.worker import autocast


class _Autocast(nn.Module):
    """The model under autocast: DataParallel's threads do not take over what holds in the caller's."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        super().__init__()
        self.model, self._precision = model, precision

    def forward(self, inputs: Tensor) -> Tensor:
        with autocast(self._precision, inputs.device):
            return self.model(inputs)


class DataParallel(Replicas):
    """See the module."""

    differs = "nothing"
    cannot = frozenset({"unused"})  # replicas give a gradient of zero, which the optimizer does not leave alone

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        module = _Autocast(context.model, context.decided.precision)
        self._call = nn.DataParallel(module, device_ids=list(context.worker.gpus))

    @staticmethod
    def check(config: ResolvedConfig, decided: Decided) -> None:
        if decided.device == "cpu":
            raise ConfigError("strategy", "data_parallel needs several GPUs in one process; on CPUs, use ddp")
        if decided.topology != "1x1":
            raise ConfigError(
                "topology",
                f"must be 1x1 for data_parallel, whose one process has --gpus-per-worker GPUs, got {decided.topology}",
            )
        gpus = config.gpus_per_worker
        if gpus < 2:
            raise ConfigError("gpus_per_worker", f"must be at least 2, got {gpus:g}; for one GPU, use ddp")
        if config.images_per_worker % gpus:
            raise ConfigError(
                "global_batch_size",
                f"must be a multiple of GPUs x accumulation ({gpus:g} x {config.accumulate}), "
                f"got {config.global_batch_size}",
            )

    @staticmethod
    def at_once(config: ResolvedConfig) -> int:
        return config.images_per_worker // int(config.gpus_per_worker)

    def exchange(self) -> None:
        """The one process has all gradients."""


STRATEGY = DataParallel
