"""Ranks as threads of this process, each with a gloo group of its own: what is exchanged is really sent."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg, _uninstall_threaded_pg

from cifar_ray import data, models, tasks
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import Evaluation
from cifar_ray.training import checkpoint, stopping
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.errors import CheckpointError, DivergedError
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import Launch, Outcome
from cifar_ray.training.setup import prepare
from cifar_ray.training.stopping import StoppedError
from tests.support.helpers import Recorder, Stopped, digest

T = TypeVar("T")

TIMEOUT = timedelta(seconds=120)
"""After which the others give up on a rank that has failed."""

_isolate: Callable[[bool], None] = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]


def on_threads(count: int, work: Callable[[Worker], T]) -> list[T]:
    """What ``work`` returns on each of ``count`` ranks, of which every one is a thread.

    Random generators are the process's: ``work`` draws nothing.
    """
    store = dist.HashStore()

    def one(rank: int) -> T:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=TIMEOUT)
        try:
            found = work(Worker(rank, count, rank))
            dist.barrier()  # nobody leaves while another still connects
            return found
        finally:
            dist.destroy_process_group()

    _install_threaded_pg()  # type: ignore[no-untyped-call]
    _isolate(True)
    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))
    finally:
        _isolate(False)
        _uninstall_threaded_pg()  # type: ignore[no-untyped-call]


def train_on_threads(
    config: TrainConfig,
    dataset: Dataset,
    folder: Path,
    recorder: Callable[[], Recorder] = Recorder,
    asked: Callable[[Recorder], bool] | None = None,
) -> list[tuple[Outcome | Exception, Recorder]]:
    """The loop on every rank of ``config``, for models that draw nothing in training.

    Args:
        config: a resolved config.
        dataset: what to train and test on.
        folder: of the checkpoints; it is there for rank 0 alone.
        recorder: makes each rank's observer.
        asked: whether to stop, given what rank 0's observer has heard so far; never if None.

    Returns:
        What each rank ends with, and its observer.
    """
    torch.manual_seed(config.seed)
    model = models.build(config, dataset.spec)  # ranks that share one generator would draw from it in turn

    def one(worker: Worker) -> tuple[Outcome | Exception, Recorder]:
        heard = recorder()
        stop = (lambda: asked(heard)) if asked else None
        place = folder if worker.rank == 0 else Path("/proc/none")
        try:
            state = prepare(config, Decided.asked(config), dataset, place, worker, Launch(0.0, 0.0), None, stop)
            return fit(state, heard), heard
        except (Stopped, StoppedError, CheckpointError, DivergedError, OSError) as error:
            return error.with_traceback(None), heard  # whose frames would hold the lock of the folder

    with (
        mock.patch.object(models, "build", side_effect=lambda *_: copy.deepcopy(model)),
        mock.patch.object(stopping, "_MOST_STEPS", 1),  # the ranks talk after every step, short as it is
    ):
        return on_threads(config.world_size, one)


def train_everywhere(asked: Callable[..., ResolvedConfig], folder: Path, stop_after: int) -> list[Snapshot]:
    """The last snapshots of a run at 1x1, 1x2 and 2x2, and of one that stopped at 1x2 and went on at 1x1: all alike."""
    dataset = data.read(asked())
    for topology in ("1x1", "1x2", "2x2"):
        train_on_threads(asked(topology=topology), dataset, folder / topology)
    stopped = asked(topology="1x2", checkpoint_every=2)
    train_on_threads(stopped, dataset, folder / "resumed", partial(Recorder, stop_after=stop_after))
    train_on_threads(replace(stopped, topology="1x1"), dataset, folder / "resumed")
    snapshots = [newest[1] for path in folder.iterdir() if (newest := checkpoint.latest(path))]
    assert len(snapshots) == 4
    assert len({digest(snapshot) for snapshot in snapshots}) == 1
    # The weights are equal to the bit; a figure is a sum over ranks, whose order may show in its last digit.
    assert [snapshot.score for snapshot in snapshots] == pytest.approx([snapshots[0].score] * 4, rel=1e-6)
    return snapshots


def evaluated(asked: ResolvedConfig) -> Evaluation:
    """What one rank finds of the untrained model; two ranks have found the same."""
    dataset = data.read(asked)
    model = models.build(asked, dataset.spec)
    (whole,), ranks = (
        on_threads(count, lambda worker: Evaluator(dataset, worker, tasks.build(asked, dataset.spec))(model))
        for count in (1, 2)
    )
    for one in ranks:
        assert one.metrics == pytest.approx(whole.metrics, rel=1e-6)  # passes in float32 over other numbers of rows
        assert one.confusion == whole.confusion
    return whole


def losses_of_steps(asked: ResolvedConfig, folder: Path) -> list[float]:
    """The losses that a run records."""
    (outcome, _), *_ = train_on_threads(asked, data.read(asked), folder)
    assert isinstance(outcome, Outcome)
    return [row.metrics["train/loss"] for row in outcome.history if row.kind == "iteration"]
