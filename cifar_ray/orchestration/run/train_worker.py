"""What runs in each worker: the loop, and an observer that posts its events to the driver."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import psutil
import ray
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from cifar_ray import storage
from cifar_ray.config import topology
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.run import failures, parameter_server
from cifar_ray.orchestration.run.events import Heartbeat, Joined, Mailbox, Placed, Progress, Stopped, WorkerRaised
from cifar_ray.orchestration.run.workers import BEATS, Attempt
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import CHECKPOINTS
from cifar_ray.storage import Folder
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, profiling
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import EpochRecord, Outcome, Row, SavedCheckpoint, Started, Traced
from cifar_ray.training.setup import TrainingState, prepare
from cifar_ray.training.stopping import StoppedError

_PROGRESS_INTERVAL_S = 0.5
_SAMPLE_INTERVAL_S = 5.0
_FIRST_SAMPLE_S = 1.0
_DELIVERY_S = 30.0


def train_loop(attempt: Attempt, rank: int) -> None:
    """Train as one of a run's workers; rank 0 posts the outcome, or where the run has stopped.

    Raises:
        RuntimeError: in place of any error, which is posted as text.
    """
    mailbox, context = attempt.mailbox, ray.get_runtime_context()
    with tempfile.TemporaryFile() as stacks, _Heart(attempt.config, mailbox, rank) as heart:
        faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)
        path, pid = f"/proc/{os.getpid()}/fd/{stacks.fileno()}", os.getpid()
        if ray.get(mailbox.post(Joined(rank, context.current_actor, context.get_node_id(), pid, path))):
            return  # the run was ended before its workers had started
        try:
            ended = _train(attempt, rank, heart)
        except BaseException as error:
            state = heart.state
            failure = failures.of(error, state.step, state.saved) if state else failures.of(error)
            ray.wait([mailbox.post(WorkerRaised(rank, failure))], timeout=_DELIVERY_S)
            raise RuntimeError(str(failure)) from None
        finally:
            faulthandler.unregister(signal.SIGUSR2)
        if rank == 0:
            ray.wait([mailbox.post(ended)], timeout=_DELIVERY_S)


def _train(attempt: Attempt, rank: int, heart: _Heart) -> Outcome | Stopped:
    config, decided, folder, mailbox = attempt.config, attempt.decided, attempt.folder, attempt.mailbox
    busy = _take_gpus(config) if decided.device == "cuda" else ""
    with ExitStack() as stack:
        stack.enter_context(collectives(decided.world_size, rank, config, decided.device))
        waiting = time.perf_counter()
        dataset = ray.get(attempt.dataset)  # the node's shared memory, not a copy
        launch = replace(attempt.launch, data_s=attempt.launch.data_s + time.perf_counter() - waiting)
        worker, nodes = _context(decided, mailbox, rank, busy)
        heart.node = nodes.index(str(worker.node)) if worker.local_rank == 0 else None
        writer = checkpoints.Writer(folder.disk / CHECKPOINTS)  # of which only rank 0 makes use
        if rank == 0:
            writer = stack.enter_context(checkpoints.writing(folder))
        observer = MailboxObserver(mailbox, rank, writer, folder.below(profiling.FOLDER), config.global_batch_size)
        asked = observer.asked if attempt.can_stop else None
        server = parameter_server.start(config, decided.cpus, worker, nodes)
        initial = partial(checkpoints.initial, folder, str(decided.weights_digest))
        try:
            heart.state = prepare(config, decided, dataset, writer.path, worker, launch, server, asked, initial)
            return fit(heart.state, observer)
        except StoppedError as stop:
            return Stopped(stop.step)


def _take_gpus(config: ResolvedConfig) -> str:
    """Check this worker's GPUs, before NCCL takes memory on them; return what others have in use of it, in words."""
    indices = assigned_gpus()
    hardware.check_gpus(indices)
    if config.gpus_per_worker < 1:
        hardware.cap_gpu_memory(indices[0], config.gpus_per_worker)
        return ""  # each of the runs that share it would name the others
    return "; ".join(filter(None, map(hardware.gpu_in_use, indices)))


@contextmanager
def collectives(world_size: int, rank: int, config: ResolvedConfig, device: str) -> Iterator[None]:
    """Context manager: the process group of several workers, on the network interface with their nodes' addresses.

    After an error, the process group is left to the end of the process: others may never answer.
    """
    if world_size == 1:
        yield
        return
    from ray.train.collective import broadcast_from_rank_zero  # seconds that a lone worker need not spend

    connection.choose_interface()
    timeout = timedelta(seconds=2 * config.hang_timeout_s)
    store: Any = None
    if rank == 0:
        store = TCPStore(ray.util.get_node_ip_address(), 0, world_size, True, timeout, wait_for_workers=False)
    host, port = broadcast_from_rank_zero((store.host, store.port) if rank == 0 else None)
    store = store or TCPStore(host, port, world_size, False, timeout)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    yield
    dist.destroy_process_group()


@dataclass
class MailboxObserver:
    """Posts the loop's events, most of them from rank 0 only; ``traces`` is the folder of profiles."""

    mailbox: Mailbox
    rank: int
    writer: checkpoints.Writer
    traces: Folder
    images_per_step: int  # over all workers
    _step: int = 0
    _posted: tuple[float, int] = (0.0, 0)
    _unread: Any = None
    _stop: bool = False

    def started(self, event: Started) -> None:
        self._posted = (time.perf_counter(), event.step)
        self.mailbox.post(event)

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        if self.rank != 0:
            return
        self._step = step
        if row is not None:
            self.mailbox.post(row)
        now = time.perf_counter()
        before, posted = self._posted
        if now - before >= _PROGRESS_INTERVAL_S:
            self._ask(Progress(epoch, step, (step - posted) * self.images_per_step / (now - before)))
            self._posted = (now, step)

    def epoch_done(self, record: EpochRecord) -> None:
        if self.rank == 0:
            self._ask(record)  # short epochs have no progress events
        self._posted = (time.perf_counter(), self._step)

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        self.writer.keep(saved.path)
        self.mailbox.post(saved)

    def traced(self, event: Traced) -> None:
        if not self.traces.local and not event.problem:  # it is on the disk of this node
            try:
                storage.persistently(lambda: self.traces.upload(event.path))
            except OSError as error:
                event = replace(event, problem=f"{self.traces.address} cannot be written: {storage.reason(error)}")
            event.path.unlink()
        self.mailbox.post(event)

    def asked(self) -> bool:
        """Whether the driver has asked the run to stop, by the newest answer to a progress or epoch event."""
        if self._unread is not None and ray.wait([self._unread], timeout=0)[0]:
            with suppress(ray.exceptions.RayError):  # the mailbox restarts, and the driver asks again
                self._stop = ray.get(self._unread)
            self._unread = None
        return self._stop

    def _ask(self, event: Any) -> None:
        """Post an event whose answer is read, unless one before is still to be read."""
        answer = self.mailbox.post(event)
        self._unread = self._unread or answer


def _context(decided: Decided, mailbox: Mailbox, rank: int, busy: str) -> tuple[Worker, list[str]]:
    """This worker, and the ids of all nodes, that of rank 0 first; checks that all workers are where they should be."""
    node_id, world_size = ray.get_runtime_context().get_node_id(), decided.world_size
    node_ids: list[Any] = [node_id] * world_size
    if world_size > 1:
        dist.all_gather_object(node_ids, node_id)
    topology.verify(decided.placement, node_ids)
    indices = tuple(assigned_gpus()) if decided.device == "cuda" else ()
    device = torch.device("cuda", indices[0]) if indices else torch.device("cpu")
    mailbox.post(
        Placed(
            rank=rank,
            node_id=node_id,
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            threads=decided.cpus,
            device=hardware.describe(device),
            interface=os.environ.get("GLOO_SOCKET_IFNAME", ""),
            gpu=hardware.cuda_versions() if indices else None,
            busy=busy,
        )
    )
    # Ray Train counts local ranks by IP address; two of its nodes on one machine share theirs.
    worker = Worker(rank, world_size, node_ids[:rank].count(node_id), node_id, device, indices)
    return worker, list(dict.fromkeys(node_ids))


def assigned_gpus() -> list[int]:
    """PyTorch's numbers of the GPUs that Ray has given this worker, which sees those of all workers of its node."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    indices = [str(name) for name in ray.get_gpu_ids()]  # a number, or a UUID of a card or of a part of one (MIG)
    return [visible.index(name) if name in visible else int(name) for name in indices]


class _Heart(threading.Thread):
    """Context manager: posts heartbeats, those of the first worker of a node with its load.

    Attributes:
        node: the number of the node whose load is sampled; None when another worker does that.
        state: of the training; None before it.
    """

    def __init__(self, config: ResolvedConfig, mailbox: Mailbox, rank: int) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self.node: int | None = None
        self.state: TrainingState | None = None
        self._interval_s = min(_SAMPLE_INTERVAL_S, config.hang_timeout_s / BEATS)
        self._mailbox, self._rank = mailbox, rank
        self._stopping = threading.Event()

    def __enter__(self) -> _Heart:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def run(self) -> None:
        psutil.cpu_percent()  # the first call only sets the start of the interval
        pause = _FIRST_SAMPLE_S  # so that short runs get a sample
        while not self._stopping.wait(pause):
            pause = self._interval_s
            load = {} if self.node is None else {f"node{self.node}/{name}": value for name, value in _load().items()}
            self._mailbox.post(Heartbeat(self._rank, time.time_ns() // 1_000_000, load))


def _load() -> dict[str, float]:
    """The node's load under MLflow's names for system metrics."""
    memory = psutil.virtual_memory()
    load = {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / 1e6,
        "system_memory_usage_percentage": memory.percent,
    }
    # A run on the CPU does not initialise CUDA, and the GPUs' load says nothing of it.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            with suppress(Exception):  # a part of a GPU, or an old driver, does not report it
                used, total = torch.cuda.device_memory_used(index), torch.cuda.get_device_properties(index).total_memory
                load[f"gpu_{index}_memory_usage_megabytes"] = used / 1e6
                load[f"gpu_{index}_memory_usage_percentage"] = 100 * used / total
                load[f"gpu_{index}_utilization_percentage"] = float(torch.cuda.utilization(index))
    return load
