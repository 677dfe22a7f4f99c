"""The training loop. It reads from top to bottom and can stop and start between any two steps."""

from __future__ import annotations

from cifar_ray.training import optimizer, per_rank, profiling, record
from cifar_ray.training.observer import Observer, Outcome
from cifar_ray.training.setup import TrainingState, unfreeze


def fit(state: TrainingState, observer: Observer) -> Outcome:
    """Train to the last epoch, or as long as ``--patience`` lasts, on every rank.

    Args:
        state: of :func:`cifar_ray.training.setup.prepare`.
        observer: this rank's.

    Raises:
        StoppedError: on every rank after the same step, with a checkpoint, if the run is asked to stop.
        DivergedError: when the loss is not finite at a step that is logged or kept; on every rank, unless the
            strategy is asynchronous.
    """
    config = state.config
    clock, steps = state.clock, state.loader.steps_per_epoch
    evaluation = None
    if state.worker.rank == 0:
        observer.started(state.started)
    for epoch in record.epochs_left(state):
        unfreeze(state, epoch)
        clock.start()
        for step_in_epoch in profiling.profiled(state, observer, range(state.step % steps, steps)):
            lr = optimizer.schedule(state.strategy.optimizer, config, state.step, steps, state.strategy.skipped)
            loss = state.strategy.gradients(state.loader.micro_batches(epoch, step_in_epoch))
            state.strategy.step()
            state.epoch_loss += loss
            state.step += 1
            clock.lap()
            observer.step_done(epoch, state.step, record.iteration(state, loss, lr))
            clock.mark("other")
            state.stopper.agreed()
            clock.mark("communication")
            if state.step % steps != 0 and record.due(state):  # the end of an epoch has a checkpoint anyway
                clock.stop()
                with record.whole(state):
                    record.save(state, observer)
                state.stopper.leave(state.step)
                clock.start()
        clock.stop()
        own = per_rank.replica(state, epoch)
        with record.whole(state):
            with clock.phase("evaluation"):
                evaluation, by_rank = per_rank.evaluate(state, own)
            record.finish_epoch(state, epoch, evaluation, by_rank, observer)
        state.stopper.leave(state.step)
    outcome = record.outcome(state, evaluation)
    if state.lock is not None:
        state.lock.release()
    return outcome
