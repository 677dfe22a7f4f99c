"""The batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cifar_ray import tasks
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import SIZED, chosen
from cifar_ray.config.sections import MIXING
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import augment, mixing, modality, order, policies, tokens
from cifar_ray.data.datasets import Dataset, as_tensor
from cifar_ray.tasks.spec import IGNORED

AHEAD = 1024
"""Images that are gathered, cropped and mirrored together, those of several steps where a step has fewer: the dozens of
small operations that take as long for 16 images as for 1,024 are paid once for all of them."""


@dataclass(frozen=True)
class DataShard:
    """Which part of every global batch one rank is given: share ``index`` of ``shares``, cut into ``micro_batches``.

    Without ``inputs`` it gets targets and seeds alone; with ``one_shape`` all texts are padded to one length.
    """

    index: int = 0
    shares: int = 1
    micro_batches: int = 1
    inputs: bool = True
    one_shape: bool = False


class MicroBatch(NamedTuple):
    """Samples that pass through the model together, on the device.

    Attributes:
        inputs: as the model takes them, shape (B, ...): of images, normalised float32 (B, C, H, W).
        targets: rows of the task's column, such as int64 labels (B,); of mixed images each class's share, float32 (B,
            num_classes).
        seed: of torch's generators while they do; it depends on the step and the micro-batch alone.
        divisor: of the sum of their losses: a micro-batch's mean share of what its global batch counts, or B where each
            sample counts 1. So the mean over all micro-batches on all ranks is the global batch's.
    """

    inputs: Tensor
    targets: Tensor
    seed: int
    divisor: float


class _Block(NamedTuple):
    """One rank's shares of consecutive global batches, (steps, B, ...), and the divisors of their micro-batches."""

    epoch: int
    steps: range
    inputs: Tensor
    targets: Tensor
    divisors: Sequence[float]


class TrainLoader:
    """Training batches of one rank, reachable in any order.

    Attributes:
        steps_per_epoch: global batches in an epoch.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        decided: Decided,
        dataset: Dataset,
        data_shard: DataShard,
        device: torch.device,
        variation: augment.Variation = augment.USUAL,
    ) -> None:
        self._config, self._spec, self._shard, self._device = config, dataset.spec, data_shard, device
        self._channels_last, self._variation = decided.convolutions != "contiguous", variation
        self._normalise = modality.of(dataset.spec).normaliser().to(device)
        task = tasks.build(config, dataset.spec)
        inputs, targets = as_tensor(dataset.train.inputs), as_tensor(dataset.train[task.target])
        # On a GPU the whole data set moves there once (185 MB for CIFAR-10); on a CPU it stays shared, or on disk.
        self._reader = ThreadPoolExecutor(1) if dataset.train.file else None
        self._inputs = inputs if self._reader else _moved(inputs, device, config)
        self._targets = targets.to(device)
        self._task, self._has_masks = task, task.spec.has_masks
        counts = None if self._has_masks else task.counts(targets)
        self._counts = None if counts is None else counts.to(device)
        self._order: tuple[int, Tensor, Tensor] = (-1, self._targets, self._targets)
        # Texts of a global batch are of about equal length, and are cut to the longest one's.
        rows = dataset.train.inputs if dataset.spec.inputs == "tokens" else None
        self._lengths = None if rows is None else torch.from_numpy(tokens.lengths(rows))
        self._widths = None if rows is None else torch.from_numpy(tokens.widths(rows))
        self._cuts = rows is not None and not data_shard.one_shape and not config.compile
        self._longest: list[int] = []
        self._seeds: list[list[int]] = []
        self._ready = _Block(-1, range(0), self._inputs, self._targets, ())
        self._coming: dict[tuple[int, int], Future[Tensor]] = {}
        whole = order.steps_per_epoch(len(targets), config.global_batch_size)
        self.steps_per_epoch = config.steps_per_epoch or whole

    def micro_batches(self, epoch: int, step: int) -> Iterator[MicroBatch]:
        """This rank's share of global batch ``step`` of ``epoch``, one micro-batch after the other."""
        if self._ready.epoch != epoch or step not in self._ready.steps:
            self._ready = self._block(epoch, step)
        row = self._ready.steps.index(step)
        inputs, targets, divisor = self._ready.inputs[row], self._ready.targets[row], self._ready.divisors[row]
        if self._cuts:
            inputs = inputs[:, : self._longest[step]]
        parts = self._shard.micro_batches
        for shown, learned, seeds in zip(inputs.chunk(parts), targets.chunk(parts), self._seeds):
            normalised = self._normalise(shown)  # images are channels last
            laid_out = normalised if self._channels_last else normalised.contiguous()
            yield MicroBatch(laid_out, learned, seeds[step], divisor)

    def _block(self, epoch: int, step: int) -> _Block:
        """This rank's shares of ``step`` and of the steps that follow it, as far as they are made together."""
        config, shard = self._config, self._shard
        steps, samples = self._samples(epoch, step, self._permutation(epoch))
        shown = samples.flatten()[: samples.numel() if shard.inputs else 0]
        coming = self._coming.pop((epoch, step), None)
        inputs = self._varied(self._gathered(shown) if coming is None else coming.result(), shown, epoch)
        targets, divisors = self._learned(epoch, steps, samples)
        if config.augment in MIXING:
            spec, each = self._spec, samples.flatten()
            drawn = mixing.partners(each, config.seed, epoch, len(self._targets))
            others = self._targets[drawn.samples]
            targets = mixing.labels(targets, others, drawn, config.augment, spec.image_size, spec.num_classes)
            if shard.inputs:
                mix = mixing.mixup if config.augment == "mixup" else mixing.cutmix
                inputs = mix(inputs, self._varied(self._gathered(drawn.samples), drawn.samples, epoch), drawn)
        if self._reader is not None and shard.inputs and steps.stop < self.steps_per_epoch:
            # While this block is trained on. The order on the CPU: a GPU would have to be waited for.
            following = self._samples(epoch, steps.stop, self._order[2])[1].flatten()
            self._coming = {(epoch, steps.stop): self._reader.submit(self._gathered, following)}
        inputs = inputs.view(len(steps), len(shown) // len(steps), *inputs.shape[1:])
        targets = targets.view(*samples.shape, *targets.shape[1:])
        return _Block(epoch, steps, inputs, targets, divisors)

    def _learned(self, epoch: int, steps: range, samples: Tensor) -> tuple[Tensor, list[float]]:
        """The targets of ``samples`` (steps, B), and each micro-batch's mean share of what its global batch counts.

        What counts of a mask depends on how it varies, so every rank varies those of the whole global batch.
        """
        batch, shard = self._config.global_batch_size, self._shard
        parts = shard.shares * shard.micro_batches
        if self._counts is None and not self._has_masks:
            return self._targets[samples.flatten()], [batch / parts] * len(steps)
        every = self._permutation(epoch)[steps.start * batch : steps.stop * batch].view(len(steps), batch)
        if self._counts is not None:
            targets, counts = self._targets[samples.flatten()], self._counts[every].sum(1)
        else:
            mine, sums = [], []
            for step in every:
                masks = self._varied(self._targets[step][..., None], step, epoch, is_mask=True)[..., 0]
                counted = self._task.counts(masks)
                sums.append(torch.tensor(batch, device=masks.device) if counted is None else counted.sum())
                mine.append(order.share(masks, shard.index, shard.shares))
            targets, counts = torch.cat(mine), torch.stack(sums)
        return targets, (counts.clamp(min=1).double() / parts).tolist()

    def _samples(self, epoch: int, step: int, epoch_order: Tensor) -> tuple[range, Tensor]:
        """The steps from ``step`` on that are made together, and this rank's samples in them: int64, (steps, B)."""
        size, shard = self._config.global_batch_size, self._shard
        steps = range(step, min(step + max(AHEAD // (size // shard.shares), 1), self.steps_per_epoch))
        batches = [order.global_batch(epoch_order, each, size) for each in steps]
        return steps, torch.stack([order.share(batch, shard.index, shard.shares) for batch in batches])

    def _gathered(self, samples: Tensor) -> Tensor:
        """Training inputs as the data set has them; those on disk in memory from which a GPU copies by itself."""
        if self._reader is None or self._device.type != "cuda":
            return self._inputs.index_select(0, samples)
        pinned = torch.empty(len(samples), *self._inputs.shape[1:], dtype=self._inputs.dtype, pin_memory=True)
        return torch.index_select(self._inputs, 0, samples.cpu(), out=pinned)

    def _varied(self, images: Tensor, samples: Tensor, epoch: int, is_mask: bool = False) -> Tensor:
        """Training images, or their masks, as an epoch shows them, before they are mixed; others do not vary."""
        augmentation, seed = self._config.augment, self._config.seed
        images = images.to(self._device, non_blocking=True)
        if augmentation == "none" or not len(samples):
            return images
        flip = augmentation != "crop" and self._spec.flip
        if augmentation == "resized_crop":
            return policies.resized_crop(images, samples, seed, epoch, flip, self._variation, is_mask)
        border = IGNORED if is_mask else 0
        images = augment.crop_and_flip(images, samples, seed, epoch, flip, self._variation, border)
        policy = policies.POLICIES.get(augmentation)
        return policy(images, samples, seed, epoch) if policy else images

    def _permutation(self, epoch: int) -> Tensor:
        """The epoch's order, on the device: a copy in every step would have the host wait for the GPU."""
        if self._order[0] != epoch:
            seed, batch = self._config.seed, self._config.global_batch_size
            if self._widths is None:
                samples = order.permutation(seed, epoch, len(self._targets))
            else:
                samples = order.bucketed(seed, epoch, self._widths, batch)
                self._longest = self._widths[samples].view(-1, batch).amax(1).tolist()
            self._order = (epoch, samples.to(self._targets.device), samples)
            steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
            first = self._shard.index * self._shard.micro_batches
            micro_batches = range(first, first + self._shard.micro_batches)
            self._seeds = [order.step_seeds(seed, steps, micro_batch) for micro_batch in micro_batches]
        return self._order[1]

    def texts(self) -> tuple[float, float] | None:
        """Tokens of a text, on average, and the share of padding in what an epoch computes; None without texts."""
        if self._widths is None or self._lengths is None:
            return None
        batch = self._config.global_batch_size
        samples = order.bucketed(self._config.seed, 0, self._widths, batch)[: self.steps_per_epoch * batch]
        widths = self._widths[samples].view(-1, batch).amax(1) if self._cuts else self._inputs.shape[1]
        computed = torch.as_tensor(widths).float().mean() * batch
        mean = self._lengths[samples].float().mean().item()
        return mean, 1 - mean * batch / computed.item()


def _moved(inputs: Tensor, device: torch.device, config: ResolvedConfig) -> Tensor:
    """The training inputs on ``device``; a ConfigError names what helps where a GPU has no room for them."""
    try:
        return inputs.to(device)
    except torch.OutOfMemoryError:
        free, needed = torch.cuda.mem_get_info(device)[0] / 1e9, inputs.nbytes / 1e9
    remedy = ", come with --stream," * (chosen(config.dataset) in SIZED)
    has = f"its training samples take {needed:.1f} GB, and the GPU has {free:.1f} GB free"
    raise ConfigError("dataset", f"must be smaller{remedy} or train with --device cpu: {has}")
