"""What runs in each Ray Train worker: the loop, and an observer that posts its events to the driver."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from cifar_ray.config import topology
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.run import checkpoints, failures, parameter_server
from cifar_ray.orchestration.run.events import Mailbox, Placed, Progress, Stopped, SystemSample
from cifar_ray.orchestration.run.failures import WorkerError
from cifar_ray.storage import Folder
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, recipe
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import EpochRecord, Outcome, Row, SavedCheckpoint, Started
from cifar_ray.training.stopping import StoppedError

_PROGRESS_INTERVAL_S = 0.5
_SAMPLE_INTERVAL_S = 5.0
_FIRST_SAMPLE_S = 1.0


def train_loop(payload: dict[str, Any]) -> Outcome | Stopped | None:
    """Ray Train's ``train_loop_per_worker``.

    Args:
        payload: ``config`` (resolved), ``dataset`` (object reference), ``folder``, ``mailbox``, and
            ``stoppable``: whether the driver may ask the run to stop between two steps.

    Returns:
        The outcome, or where the run has stopped, on rank 0; None elsewhere.

    Raises:
        WorkerError: in place of any error.
    """
    try:
        return _train(payload)
    except BaseException as error:
        raise WorkerError(failures.of(error)) from error


def _train(payload: dict[str, Any]) -> Outcome | Stopped | None:
    config: ResolvedConfig = payload["config"]
    mailbox: Mailbox = payload["mailbox"]
    launch = mailbox.launch()
    waiting = time.perf_counter()
    dataset: Dataset = ray.get(payload["dataset"])  # the node's shared memory, not a copy
    launch = replace(launch, data_s=launch.data_s + time.perf_counter() - waiting)
    worker, node = _context(config, mailbox)
    config = _as_before(config, mailbox, worker)
    outcome: Outcome | Stopped
    with _sampling(mailbox, worker, node), _checkpoints(payload["folder"], config, worker) as writer:
        observer = MailboxObserver(mailbox, worker.rank, writer)
        asked = observer.asked if payload["stoppable"] else None
        server = parameter_server.start(config, worker)
        try:
            outcome = fit(config, dataset, writer.path, worker, observer, launch, server, asked)
        except StoppedError as stop:
            outcome = Stopped(stop.step)
    observer.flush()
    return outcome if worker.rank == 0 else None


class MailboxObserver:
    """Posts the loop's events, most of them from rank 0 only."""

    def __init__(self, mailbox: Mailbox, rank: int, writer: checkpoints.Writer) -> None:
        self._mailbox = mailbox
        self._rank = rank
        self._writer = writer
        self._images_per_step = 0
        self._step = 0
        self._posted = (time.perf_counter(), 0)
        self._last: Any = None
        self._unread: Any = None
        self._stop = False

    def started(self, event: Started) -> None:
        self._images_per_step = event.config.images_per_step
        self._posted = (time.perf_counter(), event.step)
        self._post(event)

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        if self._rank != 0:
            return
        self._step = step
        if row is not None:
            self._post(row)
        now = time.perf_counter()
        before, posted = self._posted
        if now - before >= _PROGRESS_INTERVAL_S:
            self._post(Progress(epoch, step, (step - posted) * self._images_per_step / (now - before)))
            self._unread = self._unread or self._last
            self._posted = (now, step)

    def epoch_done(self, record: EpochRecord) -> None:
        if self._rank == 0:
            self._post(record)
        # A barrier over all ranks; Ray Tune's callbacks receive it.
        ray.train.report({"epoch": record.row.step, **record.row.metrics})
        self._posted = (time.perf_counter(), self._step)

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        self._writer.keep(saved.path)
        self._post(saved)

    def asked(self) -> bool:
        """Whether the driver has asked the run to stop, by the last answer to a progress event."""
        if self._unread is not None and ray.wait([self._unread], timeout=0)[0]:
            with suppress(ray.exceptions.RayError):  # the mailbox restarts, and the driver asks again
                self._stop = ray.get(self._unread)
            self._unread = None
        return self._stop

    def flush(self) -> None:
        """Wait until all posts have arrived, or the mailbox is lost."""
        if self._last is not None:
            ray.wait([self._last], timeout=10)

    def _post(self, event: Any) -> None:
        self._last = self._mailbox.post(event)


def _context(config: ResolvedConfig, mailbox: Mailbox) -> tuple[Worker, int]:
    """This worker's rank, world size, local rank, node and device; checks that all workers are where they should be.

    Returns:
        It, and the number of its node: the node of rank 0 is number 0.
    """
    context = ray.train.get_context()
    node_id = ray.get_runtime_context().get_node_id()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    node_ids: list[Any] = [node_id]
    if world_size > 1:
        node_ids = [None] * world_size
        dist.all_gather_object(node_ids, node_id)
    topology.verify(config.placement, node_ids)
    device = ray.train.torch.get_devices()[0] if config.device == "cuda" else torch.device("cpu")
    mailbox.post(
        Placed(
            rank=rank,
            node_id=node_id,
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            threads=config.cpus_reserved,
            device=hardware.describe(device),
            interface=os.environ.get("GLOO_SOCKET_IFNAME", ""),
        )
    )
    # Ray Train counts local ranks by IP address; two of its nodes on one machine share theirs.
    worker = Worker(rank, world_size, node_ids[:rank].count(node_id), node_id, device)
    return worker, list(dict.fromkeys(node_ids)).index(node_id)


def _as_before(config: ResolvedConfig, mailbox: Mailbox, worker: Worker) -> ResolvedConfig:
    """The config in the precision that workers before these have measured: two measurements may differ.

    Rank 0 asks for all: a post that is still on its way might answer one rank and not another.
    """
    if config.precision != "auto":
        return config
    known = [mailbox.precision() if worker.rank == 0 else ""]
    if worker.world_size > 1:
        dist.broadcast_object_list(known, src=0, device=worker.device)
    return recipe.with_precision(config, known[0] or "auto")


@contextmanager
def _checkpoints(folder: Folder, config: ResolvedConfig, worker: Worker) -> Iterator[checkpoints.Writer]:
    """Context manager: where rank 0 writes checkpoints; the other ranks write none."""
    if worker.rank != 0:
        yield checkpoints.Writer(folder.disk / checkpoints.CHECKPOINTS)
        return
    with checkpoints.writing(folder, config) as writer:
        yield writer


@contextmanager
def _sampling(mailbox: Mailbox, worker: Worker, node: int) -> Iterator[None]:
    """Context manager: the first worker of each node samples the load of its node, by the node's number."""
    stop = threading.Event()

    def sample() -> None:
        psutil.cpu_percent()  # the first call only sets the start of the interval
        pause = _FIRST_SAMPLE_S  # so that short runs get a sample
        while not stop.wait(pause):
            pause = _SAMPLE_INTERVAL_S
            metrics = {f"node{node}/{name}": value for name, value in _load().items()}
            mailbox.post(SystemSample(time.time_ns() // 1_000_000, metrics))

    if worker.local_rank == 0:
        threading.Thread(target=sample, daemon=True, name="system-metrics").start()
    try:
        yield
    finally:
        stop.set()


def _load() -> dict[str, float]:
    """The node's load under MLflow's names for system metrics."""
    memory = psutil.virtual_memory()
    load = {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / 1e6,
        "system_memory_usage_percentage": memory.percent,
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            with suppress(Exception):  # a part of a GPU, or an old driver, does not report it
                used, total = torch.cuda.device_memory_used(index), torch.cuda.get_device_properties(index).total_memory
                load[f"gpu_{index}_memory_usage_megabytes"] = used / 1e6
                load[f"gpu_{index}_memory_usage_percentage"] = 100 * used / total
                load[f"gpu_{index}_utilization_percentage"] = float(torch.cuda.utilization(index))
    return load
