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

from cifar_ray.config import TrainConfig
from cifar_ray.strategies.protocol import Parts
from cifar_ray.strategies.replicas import Replicas
from cifar_ray.strict import ConfigError


class DataParallel(Replicas):
    """See the module."""

    own_statistics = False

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._replicas = nn.DataParallel(parts.model)

    @staticmethod
    def check(config: TrainConfig) -> None:
        if config.device == "cpu":
            raise ConfigError("strategy", "data_parallel needs several GPUs in one process; on CPUs, use ddp")
        if config.topology != "1x1":
            raise ConfigError(
                "topology",
                f"must be 1x1 for data_parallel, whose one process has --gpus-per-worker GPUs, got {config.topology}",
            )
        if config.gpus_per_worker < 2:
            raise ConfigError("gpus_per_worker", "must be at least 2 for data_parallel, got 1; for one GPU, use ddp")

    def forward(self, images: Tensor) -> Tensor:
        return self._replicas(images)


STRATEGY = DataParallel
