"""The batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cifar_ray.config import TrainConfig
from cifar_ray.data import augment, order
from cifar_ray.data.datasets import Dataset, DatasetSpec, Split, as_tensors

EVALUATION_BATCH = 512
"""Test images per forward pass. It bounds memory and has no effect on the metrics."""


class TrainLoader:
    """Training batches of one rank, reachable in any order."""

    def __init__(self, config: TrainConfig, dataset: Dataset, rank: int, world_size: int, device: torch.device) -> None:
        self._config = config
        self._spec = dataset.spec
        self._rank, self._world_size = rank, world_size
        # On a GPU the whole data set moves there once (185 MB for CIFAR-10); on a CPU it stays shared.
        self._normalise = augment.Normalise(dataset.spec).to(device)
        self._images, self._labels = (tensor.to(device) for tensor in as_tensors(dataset.train))
        self._order: tuple[int, Tensor] = (-1, self._labels)
        self.steps_per_epoch = order.steps_per_epoch(len(self._labels), config.images_per_step)

    def micro_batches(self, epoch: int, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's part of global batch ``step`` of ``epoch``, in ``accumulate`` pieces.

        Yields:
            Normalised float32 images (B, C, H, W) and int64 labels (B,), on the device.
        """
        config = self._config
        batch = order.global_batch(self._permutation(epoch), step, config.images_per_step)
        for samples in order.rank_slice(batch, self._rank, self._world_size).chunk(config.accumulate):
            images = self._images[samples]
            if config.augment:
                images = augment.crop_and_flip(images, samples, config.seed, epoch, self._spec.flip)
            yield self._normalise(images), self._labels[samples]

    def _permutation(self, epoch: int) -> Tensor:
        """The epoch's order on the device: a copy in every step would have the host wait for the GPU."""
        if self._order[0] != epoch:
            samples = order.permutation(self._config.seed, epoch, len(self._labels))
            self._order = (epoch, samples.to(self._labels.device))
        return self._order[1]


def evaluation_batches(
    split: Split, spec: DatasetSpec, rank: int, world_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's share of ``split``: every sample is on exactly one rank, at any world size.

    Yields:
        Normalised float32 images (B, C, H, W) and int64 labels (B,), on ``device``.
    """
    images, labels = as_tensors(split)
    normalise = augment.Normalise(spec).to(device)
    mine = order.evaluation_range(len(labels), rank, world_size)
    for start in range(mine.start, mine.stop, EVALUATION_BATCH):
        part = slice(start, min(start + EVALUATION_BATCH, mine.stop))
        yield normalise(images[part].to(device)), labels[part].to(device)
