"""Putting workers where the topology says, at the start and after every failure."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import psutil
import ray
import torch
from ray.train import UserCallback
from ray.train.torch import TorchConfig

from cifar_ray.config import topology
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import Topology
from cifar_ray.orchestration.cluster import connection, ray_internals
from cifar_ray.orchestration.cluster.ray_internals import (
    ControllerCallback,
    RunningState,
    WorkerGroupCallback,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
    _TorchBackend,
)
from cifar_ray.orchestration.run.events import ControllerUp, Silent, WorkersFailed
from cifar_ray.storage import StorageError
from cifar_ray.training.errors import CheckpointError, DivergedError

NODE_ID_LABEL = "ray.io/node-id"
_LONGEST_REASON = 160
_TELL_S = 60.0
_FINAL = (ConfigError, CheckpointError, DivergedError)
"""Errors that the same run would meet again, as it would memory that is too small."""
_CPU_ALLOCATOR = "DefaultCPUAllocator"


class NotPlacedError(RuntimeError):
    """The workers have not been given their places in time."""


class Placement(ControllerCallback):
    """Runs inside Ray Train's controller: names the nodes before each start of the workers.

    Ray packs or spreads, but has no "exactly W workers on each of N nodes"; one label selector per worker
    says it. They are renewed before every start, since after a failure other nodes may be alive. Ray tries to
    start them again and again; this ends it when ``start_timeout_s`` seconds have passed since the first try.

    The driver of an elastic run has chosen the nodes by what is free on them: they stay, and when one of them has left
    the driver chooses again.
    """

    def __init__(
        self,
        wanted: Topology,
        cpus_per_worker: int,
        gpus_per_worker: int,
        start_timeout_s: float,
        mailbox: Any,
        chosen: Sequence[str] | None = None,
    ) -> None:
        self._wanted = wanted
        self._cpus, self._gpus = cpus_per_worker, gpus_per_worker
        self._timeout_s = start_timeout_s
        self._mailbox = mailbox
        self._chosen = chosen
        self._scaling_config: Any = None
        self._trying_since: float | None = None

    def after_controller_start(self, train_run_context: Any) -> None:
        self._scaling_config = train_run_context.scaling_config
        self._mailbox.post.remote(ControllerUp(ray.get_runtime_context().current_actor))

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        if isinstance(current_state, RunningState):
            self._trying_since = None

    def before_controller_execute_resize_decision(self, resize_decision: Any) -> None:
        self._trying_since = self._trying_since or time.monotonic()
        if time.monotonic() - self._trying_since >= self._timeout_s:
            raise NotPlacedError(  # Ray Train retries its own errors only
                f"the workers of topology {self._wanted} could not be placed within {self._timeout_s:g} s; "
                "the cluster is busy, or a node has left (--start-timeout-s)"
            )
        if self._chosen is not None:
            if not set(self._chosen) <= {node.node_id for node in connection.nodes()}:
                raise NotPlacedError(f"a node has left before the workers of topology {self._wanted} had started on it")
            return
        if self._wanted.nodes == 1:
            return  # STRICT_PACK finds the node by itself, a free one if there is any
        try:
            chosen = topology.choose(self._wanted, connection.nodes(), self._cpus, self._gpus)
        except ValueError:
            return  # too few nodes just now: this start times out, and the next one looks again
        self._scaling_config.label_selector = [{NODE_ID_LABEL: node_id} for node_id in chosen]


class Failures(UserCallback):
    """Runs inside Ray Train's controller: tells the driver of failed workers, and ends what is hopeless.

    It is a class of its own because Ray Train asks a ``UserCallback`` for nothing else.
    """

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        causes = {rank: ray_internals.cause(error) for rank, error in worker_exceptions.items()}
        final = {rank: one for rank, one in causes.items() if isinstance(one, _FINAL) or _out_of_memory(one)}
        # What is final has ended the other ranks as well; their errors only follow from it.
        reasons = {rank: _sentence(cause) for rank, cause in (final or causes).items()}
        self._mailbox.post.remote(WorkersFailed(reasons, bool(final)))
        self._mailbox.relaunch.remote(time.time())
        if final:
            raise next(iter(final.values()))  # an error out of this hook ends the run without another attempt


class Silence(WorkerGroupCallback):
    """Runs inside Ray Train's controller: tells the driver of a worker whose process does not answer.

    Ray Train asks every process at short intervals, restarts the workers when one is silent for too long, and says
    nothing until then.
    """

    def __init__(self, mailbox: Any, timeout_s: float) -> None:
        self._mailbox = mailbox
        self._told_after_s = min(_TELL_S, timeout_s / 2)
        self._group: Any = None
        self._told: set[int] = set()

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._group = worker_group
        self._told.clear()

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        waiting = ray_internals.unanswered_since(self._group)
        self._told &= set(waiting)  # those that have answered may fall silent again
        for rank, since in waiting.items():
            silent = time.monotonic() - since
            if silent >= self._told_after_s and rank not in self._told:
                self._told.add(rank)
                self._mailbox.post.remote(Silent(rank, silent))


def _out_of_memory(error: BaseException) -> bool:
    """Whether an allocation was refused; torch has a type of its own for a GPU's memory only."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _CPU_ALLOCATOR in str(error)


def _sentence(error: BaseException) -> str:
    if isinstance(error, WorkerHealthCheckFailedError):
        return "its process has died or does not answer"
    if isinstance(error, WorkerHealthCheckTimeoutError):
        return "its process has not answered for too long (--hang-timeout-s)"
    if _out_of_memory(error):
        return "there is not enough memory; a smaller --batch-size, or a smaller model, needs less"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:_LONGEST_REASON]
    return (
        first
        if isinstance(error, (ConfigError, CheckpointError, DivergedError, StorageError))
        else (f"{type(error).__name__}: {first}")
    )


class TorchBackend(_TorchBackend):
    """Ray Train's process group, on the network interface that owns each node's address."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


class Collectives(TorchConfig):
    """``TorchConfig`` with :class:`TorchBackend`."""

    @property
    def backend_cls(self) -> type[TorchBackend]:
        return TorchBackend


def choose_interface() -> str:
    """Tell gloo and NCCL which network interface to use, unless the environment does.

    A host name that resolves to loopback would have gloo bind there, and peers on other hosts wait
    in vain.

    Returns:
        The interface's name, or an empty string when none owns the node's address.
    """
    name = interface_of(ray.util.get_node_ip_address())
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    return name


def interface_of(address: str) -> str:
    """The interface that owns an IP address, or an empty string."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address and entry.family in (socket.AF_INET, socket.AF_INET6) for entry in entries):
            return name
    return ""
