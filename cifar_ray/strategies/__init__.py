"""Ways of keeping the replicas in step, by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from cifar_ray.config import TrainConfig
from cifar_ray.strategies import ddp

__all__ = ["REGISTRY", "Strategy", "build"]


class Strategy(Protocol):
    """What the loop asks of a strategy.

    A strategy is made from a model that every rank has initialised alike, in a process group that is up.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of this rank's images (B, C, H, W), ready for ``backward``."""

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a micro-batch; nothing is exchanged unless it is the ``last``."""

    def synchronize(self) -> None:
        """After the last backward pass: every rank's ``.grad`` is the mean over the global batch."""

    def synchronize_buffers(self) -> None:
        """Before an evaluation or a checkpoint: every rank's buffers are those of rank 0."""


REGISTRY: dict[str, Callable[[nn.Module, TrainConfig, torch.device], Strategy]] = {"ddp": ddp.DDP}


def build(model: nn.Module, config: TrainConfig, device: torch.device) -> Strategy:
    """The configured strategy around ``model``."""
    return REGISTRY[config.strategy](model, config, device)
