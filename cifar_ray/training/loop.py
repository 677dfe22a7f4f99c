"""The training loop. It reads from top to bottom and can stop and start between any two steps."""

from __future__ import annotations

from pathlib import Path

import torch

from cifar_ray.config import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.training import checkpoint, hardware, optimizer, record
from cifar_ray.training.hardware import Place
from cifar_ray.training.observer import Launch, Observer, Outcome
from cifar_ray.training.setup import prepare


def fit(
    config: TrainConfig, dataset: Dataset, folder: Path, place: Place, observer: Observer, launch: Launch
) -> Outcome:
    """Train to the last epoch, from the newest usable checkpoint below ``folder`` if there is any.

    Every rank calls this with the same arguments but for ``place`` and ``observer``;
    :func:`cifar_ray.training.setup.prepare` tells what they are.

    Raises:
        CheckpointError: when another process trains into ``folder``, or its checkpoints are all unusable.
        DivergedError: on every rank, when the loss is not finite at a step that is logged or kept.
    """
    lock = checkpoint.lock(folder) if place.rank == 0 else None
    job = prepare(config, dataset, folder, place, launch)
    config, strategy, clock, steps = job.config, job.strategy, job.clock, job.loader.steps_per_epoch
    evaluation = None
    if place.rank == 0:
        observer.started(job.started)
    for epoch in range(job.step // steps, config.epochs):
        seeds = job.seeds(epoch)  # dropout depends on the step, not on what came before
        clock.start()
        for step_in_epoch in range(job.step % steps, steps):
            hardware.seed(seeds[step_in_epoch], place.device)
            lr = optimizer.learning_rate(config, job.step, steps)
            optimizer.set_learning_rate(job.optimizer, lr)
            loss = torch.zeros((), device=place.device)
            for part, (images, labels) in enumerate(job.loader.micro_batches(epoch, step_in_epoch), start=1):
                with strategy.accumulating(last=part == config.accumulate):
                    with hardware.autocast(config.precision, place.device):
                        share = job.criterion(strategy.forward(images), labels) / config.accumulate
                    share.backward()
                loss += share.detach()
            strategy.synchronize()
            job.optimizer.step()
            job.optimizer.zero_grad(set_to_none=True)
            job.epoch_loss += loss
            job.step += 1
            clock.lap()
            observer.step_done(
                epoch, job.step, record.iteration(job, loss, lr) if job.step % config.log_every == 0 else None
            )
            if _due(config.checkpoint_every, job.step, steps):
                clock.stop()
                strategy.synchronize_buffers()
                record.save(job, observer)
                clock.start()
        clock.stop()
        strategy.synchronize_buffers()
        with clock.phase("evaluation"):
            evaluation = job.evaluator(job.model)
        record.finish_epoch(job, epoch, evaluation, observer)
    evaluation = evaluation or job.evaluator(job.model)  # every epoch was done before this process
    if lock is not None:
        lock.release()
    return record.outcome(job, evaluation)


def _due(every: int, step: int, steps_per_epoch: int) -> bool:
    """Whether a checkpoint is due within an epoch; the end of an epoch has one anyway."""
    return every > 0 and step % every == 0 and step % steps_per_epoch != 0
