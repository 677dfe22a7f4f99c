"""Everything that a loop needs before its first step, built alike on every rank."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cifar_ray import config as configs
from cifar_ray import models, strategies
from cifar_ray.config import TrainConfig
from cifar_ray.data import Dataset, order
from cifar_ray.data.loader import TrainLoader
from cifar_ray.strict import ConfigError
from cifar_ray.training import checkpoint, hardware, optimizer
from cifar_ray.training.clock import Clock
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.hardware import Place
from cifar_ray.training.observer import Launch, Row, Started


@dataclass
class Job:
    """One rank's part of a run, ready for its next step.

    Attributes:
        config: the resolved config, with nothing left to ``auto``.
        step: optimizer steps done.
        epoch_loss: this rank's sum of losses since the epoch began; float64, on the device.
        history: every row recorded so far.
        seeds: seed of torch's generators for every step.
    """

    config: TrainConfig
    place: Place
    folder: Path
    model: nn.Module
    strategy: strategies.Strategy
    optimizer: torch.optim.Optimizer
    criterion: nn.Module
    loader: TrainLoader
    evaluator: Evaluator
    clock: Clock
    seeds: list[int]
    class_names: tuple[str, ...]
    started: Started
    epoch_loss: Tensor
    step: int = 0
    history: list[Row] = dataclasses.field(default_factory=list)


def prepare(config: TrainConfig, dataset: Dataset, folder: Path, place: Place, launch: Launch) -> Job:
    """Build the run's parts and restore the newest usable checkpoint below ``folder``.

    Args:
        config: a resolved config.
        dataset: the data in memory.
        folder: where checkpoints are; the same for all ranks.
        place: this worker's place; the process group is up when there are several workers.
        launch: what happened before; what is left of the time since then is start-up time.

    Raises:
        CheckpointError: when there are checkpoints and none can be used.
        ConfigError: when the config needs hardware that is not there.
    """
    hardware.set_threads(config.cpus_per_worker)
    precision = hardware.agree_on_precision(config.precision, place)
    decided: dict[str, Any] = {"precision": precision, "device": place.device.type}
    config = dataclasses.replace(config, **decided)
    torch.manual_seed(config.seed)
    model = models.build(config, dataset.spec)
    if config.sync_batchnorm:
        if place.device.type != "cuda":
            raise ConfigError("sync_batchnorm", "needs GPUs; torch has no CPU version of it")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    model = model.to(place.device).to(memory_format=torch.channels_last).train()
    strategy = strategies.build(model, config, place.device)
    loader = TrainLoader(config, dataset, place.rank, place.world_size, place.device)
    criterion = nn.CrossEntropyLoss(label_smoothing=config.label_smoothing or 0.0)
    clock = Clock(place.device)
    _warm_up(model, strategy, criterion, next(loader.micro_batches(0, 0)), config, place)
    job = Job(
        config=config,
        place=place,
        folder=folder,
        model=model,
        strategy=strategy,
        optimizer=optimizer.build(model, config),
        criterion=criterion,
        loader=loader,
        evaluator=Evaluator(dataset, place, precision),
        clock=clock,
        seeds=order.step_seeds(config.seed, config.epochs * loader.steps_per_epoch, place.rank),
        class_names=dataset.class_names,
        started=Started(
            configs.to_mapping(config), 0, loader.steps_per_epoch, hardware=hardware.describe(place.device)
        ),
        epoch_loss=torch.zeros((), dtype=torch.float64, device=place.device),
    )
    _restore(job)
    clock.seconds["data"] += launch.data_s
    clock.seconds["startup"] += max(time.time() - launch.begun - launch.data_s, 0.0)
    return job


def _warm_up(
    model: nn.Module,
    strategy: strategies.Strategy,
    criterion: nn.Module,
    batch: tuple[Tensor, Tensor],
    config: TrainConfig,
    place: Place,
) -> None:
    """One forward and backward pass that leaves no trace in the model.

    DDP lays out its buckets anew after the first backward pass. With the first pass spent here, every
    real step adds up gradients in the same layout, so a resumed run adds them in the order of one that
    was never interrupted. What libraries set up at first use is also part of start-up this way.
    """
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images, labels = batch
    with strategy.accumulating(last=True):
        with hardware.autocast(config.precision, place.device):
            loss = criterion(strategy.forward(images), labels)
        loss.backward()
    strategy.synchronize()
    model.zero_grad(set_to_none=True)
    model.load_state_dict(before)


def _restore(job: Job) -> None:
    """Continue from the newest usable checkpoint, the same one on every rank."""
    place = job.place
    found = _agree(job.folder, place)
    if found is None:
        return
    path, skipped = found
    snapshot = checkpoint.load(Path(path), place.device)
    job.model.load_state_dict(snapshot.weights)
    job.optimizer.load_state_dict(snapshot.optimizer)
    job.clock.restore(snapshot.clock)
    job.step = snapshot.step
    job.history = list(snapshot.history)
    if place.rank == 0:  # it holds the sum over all ranks
        job.epoch_loss.fill_(snapshot.epoch_loss)
    job.started = dataclasses.replace(
        job.started,
        step=snapshot.step,
        resumed_from=path,
        skipped=tuple(skipped),
        history=tuple(snapshot.history),
    )


def _agree(folder: Path, place: Place) -> tuple[str, list[str]] | None:
    """Rank 0's choice of checkpoint, told to all; its refusal is every rank's refusal."""
    answer: list[object] = [None, ""]
    if place.rank == 0:
        try:
            newest = checkpoint.latest(folder)
            answer[0] = (str(newest[0]), list(newest[2])) if newest else None
        except CheckpointError as error:
            answer[1] = str(error)
    if place.world_size > 1:
        dist.broadcast_object_list(answer, src=0, device=place.device)
    if answer[1]:
        raise CheckpointError(str(answer[1]))
    return answer[0]  # type: ignore[return-value]
