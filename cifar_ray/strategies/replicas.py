"""What strategies have in common whose every rank holds the whole model and computes its share of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.config.train import TrainConfig
from cifar_ray.data.loader import Feed, Piece
from cifar_ray.strategies.base import Base
from cifar_ray.strategies.context import Place, autocast, seed
from cifar_ray.strategies.protocol import Differs


class Replicas(Base, ABC):
    """Forward and backward pass by PyTorch itself; a subclass says how the gradients are exchanged.

    With one worker there is nothing to exchange, and every such strategy is plain training.
    """

    differs: Differs = "statistics"

    @staticmethod
    def feed(config: TrainConfig, place: Place) -> Feed:
        return Feed(place.rank, place.world_size, config.accumulate)

    def gradients(self, pieces: Iterable[Piece]) -> Tensor:
        parts = self.parts
        count = parts.config.accumulate
        total = torch.zeros((), device=parts.place.device)
        for number, piece in enumerate(pieces, start=1):
            parts.mark("data")
            seed(piece.seed, parts.place.device)
            with self.accumulating(last=number == count):
                with autocast(parts.config.precision, parts.place.device):
                    loss = parts.criterion(self.forward(piece.images), piece.labels) / count
                parts.mark("forward")
                loss.backward()
            total += loss.detach()
            if number < count:
                parts.mark("backward")
        self.finish_backward()
        if self.world_size > 1:
            self.exchange()
        parts.mark("communication")
        return total

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.model(images)

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        """Around the passes of one piece; nothing is exchanged unless it is the ``last``."""
        return nullcontext()

    def finish_backward(self) -> None:
        """The last backward pass has returned; what follows is communication."""
        self.parts.mark("backward")

    @abstractmethod
    def exchange(self) -> None:
        """Make every rank's ``.grad`` the mean over the ranks."""

    def publish(self) -> None:
        """Parameters are alike on all ranks; batch norm's running statistics become those of rank 0."""
        if self.world_size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, src=0)
