"""The training loop. It reads from top to bottom and can stop and start between any two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.strategies.server import ServerHandle
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import checkpoint, optimizer, per_rank, record, stopping
from cifar_ray.training.observer import Launch, Observer, Outcome
from cifar_ray.training.setup import prepare


def fit(
    config: TrainConfig,
    dataset: Dataset,
    folder: Path,
    worker: Worker,
    observer: Observer,
    launch: Launch,
    server: ServerHandle | None = None,
    asked: Callable[[], bool] | None = None,
) -> Outcome:
    """Train to the last epoch, from the newest usable checkpoint below ``folder`` if there is any.

    Every rank calls this with the same arguments but for ``worker`` and ``observer``;
    :func:`cifar_ray.training.setup.prepare` tells what they are.

    Raises:
        CheckpointError: when another process trains into ``folder``, or its checkpoints are all unusable.
        StoppedError: on every rank after the same step, with a checkpoint written, when ``asked`` has said so.
        DivergedError: when the loss is not finite at a step that is logged or kept; on every rank, unless the
            strategy is asynchronous.
    """
    lock = checkpoint.lock(folder) if worker.rank == 0 else None
    job = prepare(config, dataset, folder, worker, launch, server, asked)
    config, strategy, clock, steps = job.config, job.strategy, job.clock, job.loader.steps_per_epoch
    evaluation = None
    if worker.rank == 0:
        observer.started(job.started)
    for epoch in range(job.step // steps, config.epochs):
        clock.start()
        for step_in_epoch in range(job.step % steps, steps):
            lr = optimizer.learning_rate(config, job.step, steps)
            optimizer.set_learning_rate(strategy.optimizer, lr)
            loss = strategy.gradients(job.loader.micro_batches(epoch, step_in_epoch))
            strategy.step()
            job.epoch_loss += loss
            job.step += 1
            clock.lap()
            observer.step_done(
                epoch, job.step, record.iteration(job, loss, lr) if job.step % config.log_every == 0 else None
            )
            clock.mark("other")
            job.stopper.agreed()
            clock.mark("communication")
            if job.step % steps != 0 and record.due(job):  # the end of an epoch has a checkpoint anyway
                clock.stop()
                with clock.phase("training"):
                    strategy.consolidate()
                record.save(job, observer)
                stopping.leave(job)
                clock.start()
        clock.stop()
        own = per_rank.replica(job, epoch)
        with clock.phase("training"):
            strategy.consolidate()
        with clock.phase("evaluation"):
            evaluation = per_rank.evaluate(job, own)
        record.finish_epoch(job, epoch, evaluation, observer)
        stopping.leave(job)
    evaluation = evaluation or job.evaluator(job.model)  # every epoch was done before this process
    if lock is not None:
        lock.release()
    return record.outcome(job, evaluation)
