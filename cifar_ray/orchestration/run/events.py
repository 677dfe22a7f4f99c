"""Events of a run, and the mailbox that carries them to the driver.

Ray Train's own ``report`` is a barrier over all workers, so it is not used. Everything that is displayed or recorded
goes through a mailbox, an actor beside the driver: posting never waits, and losing the mailbox never stops training.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from cifar_ray.config.decided import Decided
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.run.failures import Failure, Verdict


@dataclass(frozen=True)
class Placed:
    """A worker has started, which computes with so many CPU ``threads``.

    Attributes:
        address: IP address of its node.
        device: name of its processor or GPU.
        interface: network interface of the collectives.
        gpu: versions of what its GPU is used with; None on a CPU.
        busy: in words, how much of its GPUs' memory others have; empty where that is little.
    """

    rank: int
    node_id: str
    address: str
    host: str
    pid: int
    threads: int
    device: str
    interface: str
    gpu: dict[str, str] | None = None
    busy: str = ""


@dataclass(frozen=True)
class Joined:
    """A worker's process has begun; the driver can end it.

    Attributes:
        stacks: file on its node into which it writes its Python stacks when it gets ``SIGUSR2``.
        at: when it began, in seconds since the epoch by its machine's clock.
    """

    rank: int
    actor: Any
    node_id: str
    pid: int
    stacks: str
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class NoRoom:
    """The workers have waited ``seconds`` for room in the cluster, and go on waiting."""

    seconds: float


@dataclass(frozen=True)
class Progress:
    """Rank 0's position: optimizer steps done, and recent global images per second."""

    epoch: int
    step: int
    images_per_s: float


@dataclass(frozen=True)
class Heartbeat:
    """A worker's process runs Python; the first of a node posts its load, as MLflow names it below ``system/``."""

    rank: int
    timestamp_ms: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class WorkerRaised:
    """A worker has raised; ``failure`` is what, as text."""

    rank: int
    failure: Failure


@dataclass(frozen=True)
class WorkersFailed:
    """Workers raised or died, for the ``number``-th time in this run; ``stacks`` as of :class:`Workers`."""

    verdict: Verdict
    number: int = 1
    stacks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeLeaving:
    """Workers should stop: the cluster will lose a node that they use, at ``deadline_ms`` since 1970 or at once (0)."""

    node_id: str
    deadline_ms: int


@dataclass(frozen=True)
class RoomToGrow:
    """Workers should stop: the cluster has room for more of them, as ``topology``."""

    topology: str


@dataclass(frozen=True)
class Stopped:
    """All workers have stopped after ``step`` with a checkpoint: they were asked to."""

    step: int


@dataclass(frozen=True)
class Moved:
    """The run goes on as ``decided``, whose topology may differ."""

    decided: Decided


class _MailboxActor:
    def __init__(self) -> None:
        self._events: list[Any] = []
        self._stop = False

    def post(self, event: Any) -> bool:
        self._events.append(event)
        return self._stop

    def ask_to_stop(self, stop: bool) -> None:
        self._stop = stop

    def take(self) -> list[Any]:
        events, self._events = self._events, []
        return events


@dataclass
class Mailbox:
    """A mailbox, for those who post and the driver that reads."""

    actor: Any
    _taking: Any = None

    def post(self, event: Any) -> ray.ObjectRef:
        """Send an event without waiting; return a reference to whether the workers have been asked to stop."""
        return self.actor.post.remote(event)

    def take(self, timeout_s: float) -> Sequence[Any]:
        """All events since the last call; those of a mailbox slower than ``timeout_s`` come with a later call."""
        self._taking = self._taking or self.actor.take.remote()
        try:
            events = ray.get(self._taking, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            return []
        except ray.exceptions.RayError:
            events = []
        self._taking = None
        return events

    def ask_to_stop(self, stop: bool = True) -> None:
        """Tell rank 0, in the answer to its next post, that all workers should stop; or, later, that they need not."""
        self.actor.ask_to_stop.remote(stop)


def open_mailbox() -> Mailbox:
    """Make a mailbox; what a killed one held is lost, and the figures come again with the run's outcome."""
    return Mailbox(beside_driver(_MailboxActor))


def beside_driver(kind: type) -> Any:
    """Start an actor on the driver's node, with no CPU; it ends with the driver. Ray restarts it when it is killed."""
    here = ray.get_runtime_context().get_node_id()
    return connection.on_node(kind, here, max_restarts=-1, max_task_retries=-1).remote()
