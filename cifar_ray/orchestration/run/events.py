"""What a run's processes tell the driver, and the mailbox that carries it.

Ray Train's own ``report`` holds one report per worker until the controller's next poll, so it is kept for
epochs. Everything that is shown or tracked goes through a mailbox actor beside the driver: posting never
waits, and losing the mailbox never stops training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cifar_ray.training.observer import Launch


@dataclass(frozen=True)
class ControllerUp:
    """Ray Train's controller runs; ``actor`` is its handle."""

    actor: Any


@dataclass(frozen=True)
class Placed:
    """One worker stands where it was asked to.

    Attributes:
        rank: number of the worker.
        node_id: Ray's id of its node.
        address: IP address of its node.
        host: name of its machine.
        pid: its process.
        threads: CPU threads that it computes with.
        device: what it computes on, in words.
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
class Progress:
    """Where rank 0 is: optimizer steps done, and global images per second lately."""

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
        final: whether trying again would give the same, so that the run ends here.
    """

    reasons: dict[int, str]
    final: bool


@dataclass(frozen=True)
class Silent:
    """A worker's process has not answered for some time."""

    rank: int
    seconds: float


@dataclass(frozen=True)
class Stopped:
    """What an attempt has come to that was asked to stop: all workers have, after ``step``, with a checkpoint."""

    step: int


class _Mailbox:
    def __init__(self, launch: Launch) -> None:
        self._events: list[Any] = []
        self._stop = False
        self._launch = launch

    def launch(self) -> Launch:
        return self._launch

    def relaunch(self, begun: float) -> None:
        self._launch = Launch(begun, 0.0)

    def post(self, event: Any) -> bool:
        """Take an event; whether the run has been asked to stop."""
        self._events.append(event)
        return self._stop

    def stop(self) -> None:
        self._stop = True

    def take(self) -> list[Any]:
        events, self._events = self._events, []
        return events


@dataclass
class Inbox:
    """The driver's end of a mailbox.

    Attributes:
        actor: the mailbox, to be given to those who post.
    """

    actor: Any
    _asked: Any = None

    def take(self, timeout_s: float) -> Sequence[Any]:
        """All events since the last call; none when the mailbox is lost, or slower than this: they come later."""
        self._asked = self._asked or self.actor.take.remote()
        try:
            events = ray.get(self._asked, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            return []
        except ray.exceptions.RayError:
            events = []
        self._asked = None
        return events

    def ask_to_stop(self) -> None:
        """Have rank 0 hear, with the answer to its next post, that all workers shall stop."""
        self.actor.stop.remote()


def open_mailbox(launch: Launch) -> Inbox:
    """A new mailbox on the driver's node; it ends with the driver. Ray starts it again when it is killed.

    What it then held is lost to the display; rows of figures come again with the run's outcome. What is posted
    meanwhile waits.

    Args:
        launch: what the driver has done so far. Workers that start ask for it; after a failure, what
            they are told begins with the failure.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kept = ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1)
    return Inbox(kept.remote(launch))
