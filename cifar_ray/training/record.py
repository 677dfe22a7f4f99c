"""Record a run: iteration and epoch metrics, checkpoints, and the outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.strategies.gradients import gather
from cifar_ray.training import checkpoint, hardware
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.clock import PARTS
from cifar_ray.training.errors import DivergedError
from cifar_ray.training.evaluate import Evaluation
from cifar_ray.training.observer import EpochRecord, Observer, Outcome, Row
from cifar_ray.training.setup import Job


def iteration(job: Job, loss: Tensor, lr: float) -> Row:
    """Return the row of a logged iteration: every rank's loss, their mean, and the learning rate.

    Raises:
        DivergedError: when a loss is not finite; on every rank alike, unless the strategy is asynchronous.
    """
    losses = job.strategy.losses(loss)
    if not all(map(math.isfinite, losses)):
        raise DivergedError(job.step)
    metrics = {"train/loss": sum(losses) / len(losses), "train/lr": lr}
    metrics |= {f"train/loss_rank{rank}": value for rank, value in enumerate(losses)}
    row = Row.now("iteration", job.step, metrics)
    job.history.append(row)
    return row


def due(job: Job) -> bool:
    """Return whether to write a checkpoint after this step; one that is due waits for ``may_pause``."""
    every = job.config.checkpoint_every
    wanted = job.stopper.leaving or (every > 0 and job.step // every > job.saved // every)
    return wanted and job.strategy.may_pause


def save(job: Job, observer: Observer, accuracy: float | None = None) -> None:
    """Write a checkpoint on rank 0. The other ranks wait here, so that their next step does not.

    Raises:
        DivergedError: on every rank alike, when a loss or a weight is not finite.
        CheckpointError: on rank 0, when there is no room for the checkpoint.
        OSError: on rank 0, when it cannot be written for another reason; on the others, when rank 0 has failed.
    """
    job.saved = job.step
    with job.clock.phase("checkpoint"):
        total = _sum_losses(job)
        if not all(tensor.isfinite().all() for tensor in job.model.state_dict().values()):
            raise DivergedError(job.step)
        state = job.strategy.state()
    with job.clock.phase("checkpoint"), _meeting(job):
        if job.worker.rank == 0:
            observer.checkpoint_ready(checkpoint.save(_snapshot(job, state, total, accuracy), job.folder))


def _snapshot(job: Job, state: dict[str, Any], total: float, accuracy: float | None) -> Snapshot:
    """Collect the run's state after ``job.step`` steps.

    Args:
        job: at the end of a step.
        state: the optimizer's.
        total: sum of all ranks' losses since the epoch began.
        accuracy: on the test set, from 0 to 1, when an epoch ends here.
    """
    return Snapshot(
        config=job.config,
        step=job.step,
        epoch=job.step // job.loader.steps_per_epoch,
        accuracy=accuracy,
        class_names=job.class_names,
        weights=job.model.state_dict(),
        optimizer=state,
        clock=job.clock.state(),
        epoch_loss=total / job.worker.world_size,
        history=job.history,
    )


@contextmanager
def _meeting(job: Job) -> Iterator[None]:
    """Context manager: all ranks leave it after rank 0, and fail when rank 0 fails.

    Raises:
        OSError: on the other ranks, when rank 0 has failed.
    """
    done = torch.zeros(1, dtype=torch.uint8, device=job.worker.device)
    try:
        yield
        done.fill_(1)
    finally:
        if job.worker.world_size > 1:
            dist.broadcast(done, src=0)
    if not done.item():
        raise OSError(f"rank 0 could not write the checkpoint of step {job.step}")


def finish_epoch(job: Job, epoch: int, evaluation: Evaluation, observer: Observer) -> None:
    """Record an evaluated epoch, write its checkpoint, and notify the observer.

    Raises:
        DivergedError: on every rank alike, when the epoch's loss or the test loss is not finite.
    """
    if not math.isfinite(evaluation.metrics["loss"]):
        raise DivergedError(job.step)
    steps = job.loader.steps_per_epoch
    earlier = sum(row.metrics["epoch_s"] for row in job.history if row.kind == "epoch")
    epoch_s = job.clock.seconds["training"] - earlier
    loss = _sum_losses(job) / (steps * job.worker.world_size)
    job.epoch_loss.zero_()
    metrics = {f"test/{name}": value for name, value in evaluation.metrics.items()}
    metrics["test/images"] = float(evaluation.images)
    metrics["train/epoch_loss"] = loss
    metrics["epoch_s"] = epoch_s
    metrics["epoch_images_per_s"] = steps * job.config.images_per_step / epoch_s
    row = Row.now("epoch", epoch + 1, metrics)
    job.history.append(row)
    save(job, observer, accuracy=evaluation.metrics["accuracy"])
    observer.epoch_done(EpochRecord(row, evaluation.confusion, evaluation.per_class))


def outcome(job: Job, evaluation: Evaluation) -> Outcome:
    """Return the result of the run. Every rank gets the same, except for the times: rank 0's count."""
    epochs = [row for row in job.history if row.kind == "epoch"]
    best = max(epochs, key=lambda row: row.metrics["test/accuracy"])
    peaks = _gather(job, hardware.peak_memory_mib(job.worker.device))
    times = {f"time/{phase}_s": seconds for phase, seconds in job.clock.seconds.items()}
    times |= {f"time/{name}": seconds for name, seconds in job.clock.iterations().items()}
    times |= {f"time/step_{part}_s": seconds for part, seconds in _parts(job).items()}
    times["time/epoch_mean_s"] = job.clock.seconds["training"] / len(epochs)
    if "time/iteration_mean_s" in times:
        seconds = times["time/iteration_mean_s"] if job.strategy.synchronous else job.clock.pace()
        times["images_per_s"] = job.config.images_per_step / seconds
    path, digest = _final(job)
    return Outcome(
        epochs=len(epochs),
        metrics={
            **epochs[-1].metrics,
            "best/accuracy": best.metrics["test/accuracy"],
            "best/epoch": float(best.step),
            **_memory(peaks),
            **job.strategy.figures(),
        },
        times=times,
        begun=job.clock.begun,
        weights_sha256=digest,
        checkpoint=path,
        per_class=evaluation.per_class,
        confusion=evaluation.confusion,
        history=tuple(job.history),
    )


def _final(job: Job) -> tuple[str, str]:
    """The last checkpoint's folder and the SHA-256 of its weights, read by rank 0."""
    found: list[Any] = [None]
    if job.worker.rank == 0:
        path = checkpoint.every(job.folder)[-1]
        found[0] = str(path), checkpoint.read_manifest(path).weights.sha256
    if job.worker.world_size > 1:
        dist.broadcast_object_list(found, src=0, device=job.worker.device)
    return found[0]


def _sum_losses(job: Job) -> float:
    """Sum all ranks' losses since the epoch began; afterwards rank 0 holds the sum and the others zero."""
    if job.worker.world_size > 1:
        dist.all_reduce(job.epoch_loss)
    total = job.epoch_loss.item()
    if job.worker.rank != 0:
        job.epoch_loss.zero_()
    if not math.isfinite(total):
        raise DivergedError(job.step)
    return total


def _parts(job: Job) -> dict[str, float]:
    """Mean seconds per step by part, averaged over the ranks that measured the part."""
    mine = job.clock.parts()
    found = torch.tensor([[mine.get(part, 0.0), part in mine] for part in PARTS], dtype=torch.float64)
    found = found.to(job.worker.device)
    if job.worker.world_size > 1:
        dist.all_reduce(found)
    return {part: seconds / count for part, (seconds, count) in zip(PARTS, found.tolist()) if count}


def _memory(peaks: list[float]) -> dict[str, float]:
    """Metrics of peak memory: every rank's, and the largest."""
    each = {f"peak_memory_mib_rank{rank}": peak for rank, peak in enumerate(peaks)}
    return {"peak_memory_mib": max(peaks), **each}


def _gather(job: Job, value: float) -> list[float]:
    """Gather one number from every rank."""
    mine = torch.tensor(value, dtype=torch.float64, device=job.worker.device)
    return [other.item() for other in gather(mine)]
