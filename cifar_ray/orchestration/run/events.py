"""Events of a run, and the mailbox that carries them to the driver.

Ray Train's own ``report`` holds one report per worker until the controller's next poll, so it is used once per epoch.
Everything that is displayed or recorded goes through a mailbox, an actor beside the driver: posting never waits, and
losing the mailbox never stops training. A sweep's mailbox carries the events of all its trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cifar_ray.config.train import ResolvedConfig
from cifar_ray.training.observer import Launch, Started

_ANSWER_S = 5.0


@dataclass(frozen=True)
class ControllerStarted:
    """Ray Train's controller runs; ``actor`` is its handle."""

    actor: Any


@dataclass(frozen=True)
class Placed:
    """A worker has started.

    Attributes:
        rank: its rank.
        node_id: Ray's id of its node.
        address: IP address of its node.
        host: name of its machine.
        pid: its process id.
        threads: CPU threads that it computes with.
        device: name of its processor or GPU.
        interface: network interface of the collectives.
    """

    rank: int
    node_id: str
    address: str
    host: str
    pid: int
    threads: int
    device: str
    interface: str


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
class SystemSample:
    """Load of one node at one moment; ``metrics`` has MLflow's names without the ``system/`` prefix."""

    timestamp_ms: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class WorkersFailed:
    """Workers raised or died.

    Attributes:
        reasons: rank -> one sentence.
        final: whether trying again would fail the same way, so that the run ends here.
        trace: the traceback of the first one, as text.
        key: what two equal failures have in common.
        saved: optimizer steps in the newest checkpoint.
    """

    reasons: dict[int, str]
    final: bool
    trace: str = ""
    key: tuple[str, str] = ("", "")
    saved: int = 0

    def __str__(self) -> str:
        return "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(self.reasons.items()))


@dataclass(frozen=True)
class Silent:
    """A worker's process has not answered for some time."""

    rank: int
    seconds: float


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
    """All workers have stopped after ``step`` because they were asked to, with a checkpoint."""

    step: int


@dataclass(frozen=True)
class Moved:
    """The run goes on with ``config``, which differs from before in its topology at most."""

    config: ResolvedConfig


class _MailboxActor:
    """The actor of a mailbox."""

    def __init__(self, launch: Launch | None) -> None:
        self._events: list[Any] = []
        self._stop = False
        self._cancelled = False
        self._launch = launch
        self._precision = ""

    def launch(self) -> Launch | None:
        return self._launch

    def precision(self) -> str:
        return self._precision

    def relaunch(self, launch: Launch) -> None:
        self._launch = launch

    def post(self, event: Any) -> bool:
        self._events.append(event)
        if isinstance(event, Started):
            self._precision = event.config.precision
        return self._stop

    def stop(self) -> None:
        self._stop = True

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def take(self) -> list[Any]:
        events, self._events = self._events, []
        return events


@dataclass
class Mailbox:
    """A mailbox, as those who post and the driver that reads both have it."""

    actor: Any
    _taking: Any = None

    def post(self, event: Any) -> ray.ObjectRef:
        """Send an event without waiting.

        Returns:
            A reference to whether the run has been asked to stop.
        """
        return self.actor.post.remote(event)

    def take(self, timeout_s: float) -> Sequence[Any]:
        """Return all events since the last call.

        Returns none when the mailbox is lost, or slower than ``timeout_s``: they come with a later call.
        """
        self._taking = self._taking or self.actor.take.remote()
        try:
            events = ray.get(self._taking, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            return []
        except ray.exceptions.RayError:
            events = []
        self._taking = None
        return events

    def ask_to_stop(self) -> None:
        """Tell rank 0, in the answer to its next post, that all workers should stop."""
        self.actor.stop.remote()

    def cancel(self) -> None:
        """Have the controller start no more workers."""
        self.actor.cancel.remote()

    def cancelled(self) -> bool:
        """Whether the controller should start no more workers; False when the mailbox does not answer."""
        try:
            return ray.get(self.actor.cancelled.remote(), timeout=_ANSWER_S)
        except (ray.exceptions.RayError, TimeoutError):
            return False

    def launch(self) -> Launch:
        """When the current start of the workers began, for the phases of their times."""
        return ray.get(self.actor.launch.remote())

    def precision(self) -> str:
        """The precision in which earlier workers of the run have trained; empty when there were none."""
        return ray.get(self.actor.precision.remote())

    def relaunch(self, begun: float) -> None:
        """Workers that start from now on count from ``begun``, a ``time.time()``."""
        self.actor.relaunch.remote(Launch(begun, 0.0))


def open_mailbox(launch: Launch | None = None) -> Mailbox:
    """Make a mailbox on the driver's node; it ends with the driver. Ray restarts it when it is killed.

    The display loses what it held then; the figures come again with the run's outcome. What is posted meanwhile waits.

    Args:
        launch: when the run began, and what the driver has done since; None for a sweep's mailbox.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kept = ray.remote(_MailboxActor).options(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1)
    return Mailbox(kept.remote(launch))
