"""Record a run: iteration and epoch metrics, checkpoints, and the outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.config import limits
from cifar_ray.strategies.gradients import gather
from cifar_ray.tasks import choosing
from cifar_ray.tasks.protocol import Evaluation
from cifar_ray.tasks.spec import CHOSEN, CHOSEN_EPOCH
from cifar_ray.training import checkpoint, hardware, manifest, optimizer, step_times
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError, DivergedError, RankFailedError
from cifar_ray.training.observer import EpochRecord, Observer, Outcome, Row
from cifar_ray.training.rank_times import PARTS
from cifar_ray.training.setup import TrainingState


def iteration(state: TrainingState, loss: Tensor, lr: float) -> Row:
    """Return the row of a logged iteration: every rank's loss, their mean, and the learning rate.

    Raises:
        DivergedError: when a loss is not finite; on every rank alike, unless the strategy is asynchronous.
    """
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
    with optimizer.averaged(state.strategy.optimizer):
        with state.clock.phase("training"):
            state.strategy.consolidate()
        yield


def due(state: TrainingState) -> bool:
    """Return whether to write a checkpoint after this step; one that is due waits for ``may_pause``."""
    every = state.config.checkpoint_every
    wanted = state.stopper.leaving or (every > 0 and state.step // every > state.saved // every)
    return wanted and state.strategy.may_pause


def save(state: TrainingState, observer: Observer, score: float | None = None) -> None:
    """Write a checkpoint on rank 0. The other ranks wait here, so that their next step does not.

    Raises:
        DivergedError: on every rank alike, when a loss or a weight is not finite.
        CheckpointError: on rank 0, when there is no room for the checkpoint.
        OSError: on rank 0, when it cannot be written for another reason; on the others, when rank 0 has failed.
    """
    state.saved = state.step
    with state.clock.phase("checkpoint"):
        total = _sum_losses(state)
        if not all(tensor.isfinite().all() for tensor in state.model.state_dict().values()):
            raise DivergedError(state.step)
        optimizer_state = state.strategy.state()
    with state.clock.phase("checkpoint"), _meeting(state):
        if state.worker.rank == 0:
            observer.checkpoint_ready(checkpoint.save(_snapshot(state, optimizer_state, total, score), state.folder))


def _snapshot(state: TrainingState, optimizer_state: dict[str, Any], total: float, score: float | None) -> Snapshot:
    """Collect the run's state after ``state.step`` steps.

    Args:
        state: at the end of a step.
        optimizer_state: the optimizer's.
        total: sum of all ranks' losses since the epoch began.
        score: the task's primary figure on the samples measured after every epoch, when one ends here.
    """
    return Snapshot(
        config=state.config,
        decided=state.decided,
        step=state.step,
        epoch=state.step // state.loader.steps_per_epoch,
        score=score,
        task=state.task.spec,
        class_names=state.class_names,
        weights=state.model.state_dict(),
        optimizer=optimizer_state,
        clock=state.clock.state(),
        epoch_loss=total / state.worker.world_size,
        history=state.history,
        encoding=state.encoding,
    )


@contextmanager
def _meeting(state: TrainingState) -> Iterator[None]:
    """Context manager: all ranks leave it after rank 0, and fail when rank 0 fails.

    Raises:
        RankFailedError: on the other ranks, when rank 0 has failed.
    """
    done = torch.zeros(1, dtype=torch.uint8, device=state.worker.device)
    try:
        yield
        done.fill_(1)
    finally:
        if state.worker.world_size > 1:
            dist.broadcast(done, src=0)
    if not done.item():
        raise RankFailedError(f"rank 0 could not write the checkpoint of step {state.step}")


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


@dataclass(frozen=True)
class Tested:
    """The test figures of a run whose epochs are done.

    Attributes:
        last: of the last checkpoint.
        chosen: of the one that was chosen; None when none was, or it cannot be read.
        epoch: the chosen one's.
        problem: why the chosen one cannot be tested, as a sentence; empty when it can.
    """

    last: Evaluation
    chosen: Evaluation | None = None
    epoch: int = 0
    problem: str = ""


def test(state: TrainingState, last: Evaluation | None) -> Tested:
    """Evaluate the last checkpoint and the chosen one on the test set.

    Args:
        state: after the last epoch.
        last: of the last epoch; None when it was done before this process.
    """
    found: list[Any] = [None, None, ""]
    if state.worker.rank == 0:
        found = [checkpoint.every(state.folder)[-1], *_choice(state)]
    if state.worker.world_size > 1:
        dist.broadcast_object_list(found, src=0, device=state.worker.device)
    newest, best, problem = found
    with state.clock.phase("evaluation"):
        if last is None or state.tester is not state.evaluator:
            last = _tested(state, newest)
        if best is None:
            return Tested(last, problem=problem)
        epoch = manifest.step_of(best.name) // state.loader.steps_per_epoch
        return Tested(last, last if best == newest else _tested(state, best), epoch)


def _choice(state: TrainingState) -> tuple[Path | None, str]:
    """The checkpoint that is the best by the run's history, and why it cannot be read; None where there is none.

    A damaged one does not make the next best the chosen one, as :func:`checkpoint.best` would.
    """
    chooser = choosing.objective(state.task.spec, state.decided.facts)
    if chooser is None or (best := checkpoint.best(state.folder)) is None:
        return None, ""
    rows = [row for row in state.history if row.kind == "epoch"]
    top = max(rows, key=lambda row: chooser.figure.rank(row.metrics.get(chooser.metric, math.nan)))
    of_epoch = {manifest.step_of(path.name): path for path in checkpoint.every(state.folder)}
    best = of_epoch.get(top.step * state.loader.steps_per_epoch, best)
    try:
        if best != max(of_epoch.items())[1]:  # the last, whose figures are known
            checkpoint.load(best)
    except CheckpointError as error:
        why = str(error).replace(f"{state.folder}/", "")
        return None, f"the best checkpoint, of epoch {top.step}, cannot be tested: {why}"
    return best, ""


def _tested(state: TrainingState, path: Path) -> Evaluation:
    """The test figures of a checkpoint, which rank 0 reads; the model is the checkpoint's afterwards."""
    if state.worker.rank == 0:
        state.model.load_state_dict(checkpoint.load(path).weights)
    if state.worker.world_size > 1:
        for tensor in state.model.state_dict().values():
            received = tensor.contiguous()
            dist.broadcast(received, src=0)
            tensor.copy_(received)
    return state.tester(state.model)


def outcome(state: TrainingState, tested: Tested) -> Outcome:
    """Return the result of the run. Every rank gets the same, except for the times: rank 0's count."""
    epochs = [row for row in state.history if row.kind == "epoch"]
    task, shown = state.task.spec, tested.chosen or tested.last
    peaks = _gather(state, hardware.peak_memory_mib(state.worker.device))
    times = {f"time/{phase}_s": seconds for phase, seconds in state.clock.seconds.items()}
    times |= {f"time/{name}": seconds for name, seconds in state.clock.iterations().items()}
    times |= {f"time/step_{part}_s": seconds for part, seconds in _parts(state).items()}
    times["time/epoch_mean_s"] = state.clock.seconds["training"] / len(epochs)
    if "time/iteration_mean_s" in times:
        seconds = times["time/iteration_mean_s"] if state.strategy.synchronous else state.clock.pace()
        times[task.throughput] = state.config.global_batch_size / seconds
        if texts := state.loader.texts():
            times["tokens_per_s"] = texts.tokens * times[task.throughput]
            times["padding_share"] = texts.padding
    path, digest = _final(state)
    return Outcome(
        epochs=len(epochs),
        metrics={
            **epochs[-1].metrics,
            **{f"test/{name}": value for name, value in tested.last.metrics.items()},
            task.counted: float(tested.last.images),
            **_chosen(state, tested, epochs),
            **_memory(peaks),
            **state.strategy.figures(),
        },
        times=times,
        begun=state.clock.begun,
        weights_sha256=digest,
        checkpoint=path,
        per_class=shown.per_class,
        confusion=shown.confusion,
        history=tuple(state.history),
        stopped_by=limits.PATIENCE if len(epochs) < state.config.epochs else "",
        untested=tested.problem,
        mistakes=state.tester.mistakes(),  # it has evaluated the checkpoint that is shown last
        steps=step_times.gather(state),
    )


def _chosen(state: TrainingState, tested: Tested, epochs: Sequence[Row]) -> dict[str, float]:
    """How many validation samples there are, and metrics of the chosen checkpoint.

    These are its epoch, its test figures, and the validation figure that chose it.
    """
    task, validated = state.task.spec, state.decided.facts.val_size > 0
    metrics = {task.counted_on("val"): float(state.evaluator.count)} if validated else {}
    if tested.chosen is None:
        return metrics
    metrics |= {f"{CHOSEN}test/{name}": value for name, value in tested.chosen.metrics.items()}
    metrics[CHOSEN_EPOCH] = float(tested.epoch)
    if validated:
        metrics[task.primary.best] = epochs[tested.epoch - 1].metrics[task.primary.on("val")]
    return metrics


def _final(state: TrainingState) -> tuple[str, str]:
    """The last checkpoint's folder and the SHA-256 of its weights, read by rank 0."""
    paths: list[Any] = [None]
    if state.worker.rank == 0:
        path = checkpoint.every(state.folder)[-1]
        paths[0] = str(path), manifest.read(path).weights.sha256
    if state.worker.world_size > 1:
        dist.broadcast_object_list(paths, src=0, device=state.worker.device)
    return paths[0]


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


def _parts(state: TrainingState) -> dict[str, float]:
    """Mean seconds per step by part, averaged over the ranks that measured the part."""
    mine = state.clock.parts()
    parts = torch.tensor([[mine.get(part, 0.0), part in mine] for part in PARTS], dtype=torch.float64)
    parts = parts.to(state.worker.device)
    if state.worker.world_size > 1:
        dist.all_reduce(parts)
    return {part: seconds / count for part, (seconds, count) in zip(PARTS, parts.tolist()) if count}


def _memory(peaks: list[float]) -> dict[str, float]:
    """Metrics of peak memory: every rank's, and the largest."""
    by_rank = {f"peak_memory_mib_rank{rank}": peak for rank, peak in enumerate(peaks)}
    return {"peak_memory_mib": max(peaks), **by_rank}


def _gather(state: TrainingState, value: float) -> list[float]:
    """Gather one number from every rank."""
    mine = torch.tensor(value, dtype=torch.float64, device=state.worker.device)
    return [other.item() for other in gather(mine)]
