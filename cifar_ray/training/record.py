"""Record a run: iteration and epoch metrics, checkpoints, and the outcome."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from cifar_ray.config import limits
from cifar_ray.tasks import choosing
from cifar_ray.tasks.protocol import Evaluation
from cifar_ray.tasks.spec import CHOSEN, CHOSEN_EPOCH
from cifar_ray.training import checkpoint, hardware, optimizer, step_times
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.collectives import from_all, from_rank0
from cifar_ray.training.errors import CheckpointError, DivergedError
from cifar_ray.training.observer import EpochRecord, Observer, Outcome, Row, step_of
from cifar_ray.training.rank_times import PARTS
from cifar_ray.training.setup import TrainingState


def iteration(state: TrainingState, loss: Tensor, lr: float) -> Row | None:
    """Return every rank's loss, their mean, and the learning rate, every ``log_every`` steps.

    Raises:
        DivergedError: when a loss is not finite; on every rank alike, unless the strategy is asynchronous.
    """
    if state.step % state.config.log_every != 0:
        return None
    losses = state.strategy.losses(loss)
    if state.strategy.synchronous and not state.strategy.may_pause:  # ranks have drifted apart: here they wait
        state.clock.mark("communication")
    if not all(map(math.isfinite, losses)):
        raise DivergedError(state.step)
    metrics = {"train/loss": sum(losses) / len(losses), "train/lr": lr}
    metrics |= {f"train/loss_rank{rank}": value for rank, value in enumerate(losses)}
    row = Row.now("iteration", state.step, metrics)
    state.history.append(row)
    return row


def epochs_left(state: TrainingState) -> Iterator[int]:
    """The epochs that are to be trained, from 0; every rank has the same history, and so decides alike on patience.

    Raises:
        StoppedError: when the run is to pause where it is: its last process may have ended right after that checkpoint.
    """
    steps = state.loader.steps_per_epoch
    state.stopper.leave(state.step)
    for epoch in range(state.step // steps, state.config.epochs):
        within = state.step % steps != 0  # a checkpoint within an epoch, from which the run goes on to its end
        rows = [row.metrics for row in state.history if row.kind == "epoch"]
        if not within and choosing.is_exhausted(state.config, state.task.spec, state.decided.facts, rows):
            return
        yield epoch


@contextmanager
def whole(state: TrainingState) -> Iterator[None]:
    """Context manager: the model is whole, the same on every rank, and that of the moving averages if there are any."""
    optimizer.exchange(state.strategy.optimizer)
    with state.clock.phase("training"):
        state.strategy.consolidate()
    yield
    optimizer.exchange(state.strategy.optimizer)


def due(state: TrainingState) -> bool:
    """Return whether to write a checkpoint after this step; one that is due waits for ``may_pause``."""
    every = state.config.checkpoint_every
    wanted = state.stopper.leaving or (every > 0 and state.step // every > state.saved // every)
    return wanted and state.strategy.may_pause


def save(state: TrainingState, observer: Observer, score: float | None = None) -> None:
    """Write a checkpoint on rank 0. The other ranks wait here, so that their next step does not.

    ``score`` is the task's primary figure on the samples measured after every epoch, when one ends here.

    Raises:
        DivergedError: on every rank alike, when a loss or a weight is not finite.
        CheckpointError: on rank 0, when there is no room for the checkpoint.
        OSError: on rank 0, when it cannot be written for another reason.
        RankFailedError: on the others, when rank 0 has failed.
    """
    state.saved = state.step
    with state.clock.phase("checkpoint"):
        total = _sum_losses(state)
        if not all(tensor.isfinite().all() for tensor in state.model.state_dict().values()):
            raise DivergedError(state.step)
        optimizer_state = state.strategy.state()

    def write() -> None:
        snapshot = Snapshot(
            config=state.config,
            decided=state.decided,
            task=state.task.spec,
            step=state.step,
            epoch=state.step // state.loader.steps_per_epoch,
            score=score,
            weights=state.model.state_dict(),
            optimizer=optimizer_state,
            clock=state.clock.state(),
            epoch_loss=total / state.worker.world_size,
            history=state.history,
            encoding=state.encoding,
        )
        observer.checkpoint_ready(checkpoint.save(snapshot, state.folder))

    with state.clock.phase("checkpoint"):
        from_rank0(state.worker, write)


def finish_epoch(
    state: TrainingState, epoch: int, evaluation: Evaluation, by_rank: Mapping[str, float], observer: Observer
) -> None:
    """Record an evaluated epoch with the metrics ``by_rank``, write its checkpoint, and notify the observer.

    Raises:
        DivergedError: on every rank alike, when the epoch's loss or that of the evaluation is not finite.
    """
    if not math.isfinite(evaluation.metrics["loss"]):
        raise DivergedError(state.step)
    steps = state.loader.steps_per_epoch
    earlier = sum(row.metrics["epoch_s"] for row in state.history if row.kind == "epoch")
    epoch_s = state.clock.seconds["training"] - earlier
    loss = _sum_losses(state) / (steps * state.worker.world_size)
    state.epoch_loss.zero_()
    measured = state.decided.facts.measured
    metrics = {**{f"{measured}/{name}": value for name, value in evaluation.metrics.items()}, **by_rank}
    metrics["train/epoch_loss"] = loss
    metrics["epoch_s"] = epoch_s
    metrics[state.task.spec.epoch_throughput] = steps * state.config.global_batch_size / epoch_s
    row = Row.now("epoch", epoch + 1, metrics)
    state.history.append(row)
    score = evaluation.metrics[state.task.spec.primary.name]
    save(state, observer, score if math.isfinite(score) else None)
    observer.epoch_done(EpochRecord(row, evaluation.confusion, evaluation.per_class))


def outcome(state: TrainingState, last: Evaluation | None) -> Outcome:
    """Evaluate the last checkpoint and the chosen one on the test set, and return the result of the run.

    Every rank gets the same, except for the times: rank 0's count. ``last`` is the last epoch's evaluation; None when
    that was done before this process.
    """
    worker, task, clock = state.worker, state.task.spec, state.clock
    newest, digest, best, problem = from_rank0(worker, lambda: _kept(state))
    with clock.phase("evaluation"):
        if last is None or state.tester is not state.evaluator:
            last = _tested(state, newest)
        chosen = last if best == newest else _tested(state, best) if best else None
    shown = chosen or last
    epochs = [row for row in state.history if row.kind == "epoch"]
    peaks, parts = zip(*from_all(worker, (hardware.peak_memory_mib(worker.device), clock.parts())))
    times = {f"time/{phase}_s": seconds for phase, seconds in clock.seconds.items()}
    times |= {f"time/{name}": seconds for name, seconds in clock.iterations().items()}
    for part in PARTS:
        if measured := [mine[part] for mine in parts if part in mine]:
            times[f"time/step_{part}_s"] = statistics.fmean(measured)
    times["time/epoch_mean_s"] = clock.seconds["training"] / len(epochs)
    if "time/iteration_mean_s" in times:
        seconds = times["time/iteration_mean_s"] if state.strategy.synchronous else clock.pace()
        times[task.throughput] = state.config.global_batch_size / seconds
        if texts := state.loader.texts():
            tokens, times["padding_share"] = texts
            times["tokens_per_s"] = tokens * times[task.throughput]
    metrics = {**epochs[-1].metrics, **{f"test/{name}": value for name, value in last.metrics.items()}}
    metrics[task.counted_on("test")] = float(last.images)
    if val_size := state.decided.facts.val_size:
        metrics[task.counted_on("val")] = float(val_size)
    if chosen is not None and best is not None:
        epoch = step_of(best.name) // state.loader.steps_per_epoch
        metrics |= {f"{CHOSEN}test/{name}": value for name, value in chosen.metrics.items()}
        metrics[CHOSEN_EPOCH] = float(epoch)
        if val_size:  # the figure that chose it
            metrics[task.primary.best] = epochs[epoch - 1].metrics[task.primary.on("val")]
    metrics |= {"peak_memory_mib": max(peaks)}
    metrics |= {f"peak_memory_mib_rank{rank}": peak for rank, peak in enumerate(peaks)}
    steps = step_times.gather(state)
    here = [{part: spread.mean for part, spread in rank.parts.items()} for rank in steps.ranks]
    return Outcome(
        epochs=len(epochs),
        metrics={**metrics, **state.strategy.figures(here)},
        times=times,
        begun=clock.begun,
        weights_sha256=digest,
        checkpoint=str(newest),
        per_class=shown.per_class,
        confusion=shown.confusion,
        history=tuple(state.history),
        stopped_by=limits.PATIENCE if len(epochs) < state.config.epochs else "",
        untested=problem,
        mistakes=state.tester.mistakes(),  # it has evaluated the checkpoint that is shown last
        steps=steps,
    )


def _kept(state: TrainingState) -> tuple[Path, str, Path | None, str]:
    """The last checkpoint and its weights' SHA-256, the chosen one or None, and why that one cannot be read.

    The chosen one is the best by the run's history: a damaged one does not make the next best the chosen one, as
    :func:`checkpoint.best` would.
    """
    newest = checkpoint.every(state.folder)[-1]
    digest = checkpoint.read(newest).weights_sha256
    chooser = choosing.objective(state.task.spec, state.decided.facts)
    if chooser is None or (best := checkpoint.best(state.folder)) is None:
        return newest, digest, None, ""
    rows = [row for row in state.history if row.kind == "epoch"]
    top = max(rows, key=lambda row: chooser.figure.rank(row.metrics.get(chooser.metric, math.nan)))
    of_epoch = {step_of(path.name): path for path in checkpoint.every(state.folder)}
    best = of_epoch.get(top.step * state.loader.steps_per_epoch, best)
    try:
        if best != newest:  # whose figures are known
            checkpoint.load(best)
    except CheckpointError as error:
        why = str(error).replace(f"{state.folder}/", "")
        return newest, digest, None, f"the best checkpoint, of epoch {top.step}, cannot be tested: {why}"
    return newest, digest, best, ""


def _tested(state: TrainingState, path: Path) -> Evaluation:
    """The test figures of a checkpoint, which rank 0 reads; the model is the checkpoint's afterwards."""
    state.model.load_state_dict(from_rank0(state.worker, lambda: checkpoint.load(path).weights))
    return state.tester(state.model)


def _sum_losses(state: TrainingState) -> float:
    """Sum all ranks' losses since the epoch began; afterwards rank 0 holds the sum and the others zero."""
    if state.worker.world_size > 1:
        dist.all_reduce(state.epoch_loss)
    total = state.epoch_loss.item()
    if state.worker.rank != 0:
        state.epoch_loss.zero_()
    if not math.isfinite(total):
        raise DivergedError(state.step)
    return total
