"""The one loop that restarts workers: after a failure, when a node leaves, or when there is room for more of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from cifar_ray import strategies
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import allocation, optional
from cifar_ray.orchestration.cluster.allocation import Allocation, NodeAllocator, TooSmallError
from cifar_ray.orchestration.cluster.connection import Held
from cifar_ray.orchestration.run import attempt, failures
from cifar_ray.orchestration.run.attempt import Ended, Failed, NotPlaced
from cifar_ray.orchestration.run.events import (
    Joined,
    Mailbox,
    Moved,
    NodeLeaving,
    NoRoom,
    Placed,
    RoomToGrow,
    Stopped,
    WorkersFailed,
)
from cifar_ray.orchestration.run.failures import Verdict
from cifar_ray.orchestration.run.limits import Limit, LimitReached, Meter
from cifar_ray.orchestration.run.workers import Attempt
from cifar_ray.storage import Folder
from cifar_ray.training.observer import Launch, Outcome, Started

_CHECK_S = 1.0
_FIRST_TRY_S, _LONGEST_TRY_S = 15.0, 120.0
_SETTLED_S = 3.0


@dataclass(frozen=True)
class Done:
    """The run has ended."""

    outcome: Outcome


@dataclass(frozen=True)
class Retry:
    """Start again from the newest checkpoint after a failure."""

    failed: WorkersFailed


@dataclass(frozen=True)
class Move:
    """Start again without a failure, on nodes chosen anew; ``waited_s``: for room, since the first try."""

    waited_s: float = 0.0


@dataclass(frozen=True)
class GiveUp:
    """The run fails; ``failed`` when it was its workers that did."""

    reason: str
    failed: WorkersFailed | None = None


@dataclass(frozen=True)
class Halt:
    """The run has stopped at a limit; ``by`` is which, as ``config.limits`` names it."""

    by: str


class _HaltError(Exception):
    """A limit ends workers that cannot stop between two steps."""


@dataclass
class Past:
    """What has happened to a run in this driver.

    Attributes:
        failures: how often its workers have failed.
        verdict: of the last failure.
        waiting_since: ``time.monotonic()`` of the first try of a start that found no room; None when it trains.
        limit: which limit is reached; empty while none is.
    """

    failures: int = 0
    verdict: Verdict | None = None
    waiting_since: float | None = None
    limit: str = ""


Decision = Done | Retry | Move | GiveUp | Halt


def decide(ended: Ended, past: Past, config: ResolvedConfig, begun: float) -> Decision:
    """What to do after an attempt that has begun at ``begun``, by ``time.monotonic()``; adds it to ``past``."""
    if isinstance(ended, Outcome):
        return Done(ended)
    if past.limit and not isinstance(ended, Failed):
        return Halt(past.limit)
    if isinstance(ended, NotPlaced):
        past.waiting_since = past.waiting_since or begun
        waited = time.monotonic() - past.waiting_since
        if waited < allocation.start_timeout_s():
            return Move(waited)
        return GiveUp(f"the workers could not be placed within {allocation.start_timeout_s():g} s")
    past.waiting_since = None
    if isinstance(ended, Stopped):
        return Move()
    past.failures += 1
    past.verdict = failures.judge(ended.failures, past.verdict)
    failed = WorkersFailed(past.verdict, past.failures, ended.stacks)
    if past.verdict.final or past.failures > config.max_failures:
        return GiveUp(past.verdict.reason, failed)
    if past.limit:
        return Halt(past.limit)
    return Retry(failed)


@dataclass
class Run:
    """A run that trains on the connected cluster, in its driver or in a trial's process.

    Attributes:
        cpus: CPUs of each worker that are given; None where they follow from the nodes.
        dataset: in Ray's object store.
        handle: called with every event.
        check: as for :func:`cifar_ray.orchestration.run.attempt.run`; it is also called while nothing can stop, and
            then raises what ends the run.
        allocator: chooses the nodes after the first attempt.
        mailbox: into which its workers post; it may have served a run that has finished.
        limit: says when what the meter has counted is too much.
    """

    config: ResolvedConfig
    cpus: int | None
    folder: Folder
    dataset: ray.ObjectRef
    handle: Callable[[Any], None]
    check: Callable[..., bool]
    allocator: NodeAllocator
    mailbox: Mailbox
    meter: Meter
    limit: Limit
    _decided: Decided = field(init=False)
    _nodes: dict[int, str] = field(default_factory=dict)
    _past: Past = field(default_factory=Past)
    _moves: bool = False
    _looked: float = 0.0
    _room_since: float | None = None

    def train(self, chosen: Allocation, launch: Launch) -> Outcome | Halt:
        """Train to the end or to a limit, however often the workers start.

        A move because a node leaves with notice, or because there is room for more workers, is not a failure.

        Raises:
            RunFailedError: when training fails, or no nodes come in time.
        """
        while True:
            self._decided, begun = chosen.decided, time.monotonic()
            self._nodes.clear()
            self._moves, self._room_since = False, None
            place = (self.dataset, self.folder, self.mailbox)
            start = Attempt(self.config, chosen.decided, chosen.nodes, *place, launch, self._start_s())
            try:
                ended = attempt.run(start, self._hear, self._should_stop)
            except _HaltError:
                return Halt(self._past.limit)
            finally:
                self.handle(self.meter.release())
            if isinstance(ended, Stopped):
                self.handle(ended)
            if not isinstance(ended, Outcome):
                self.check()
            decision = decide(ended, self._past, self.config, begun)
            if isinstance(decision, Done):
                return decision.outcome
            if isinstance(decision, Halt):
                return decision
            if isinstance(decision, GiveUp):
                if decision.failed is not None:
                    self.handle(decision.failed)
                    raise RunFailedError(decision.reason)
                kind = "GPU" if self._decided.device == "cuda" else "CPU"
                raise RunFailedError(f"{decision.reason}: {allocation.holders(kind)}")
            if isinstance(decision, Retry):
                self.handle(decision.failed)
            elif decision.waited_s:
                self.handle(NoRoom(decision.waited_s))
            launch = Launch(time.time(), 0.0)
            try:
                chosen = self.allocator.allocate(self.config, self._asked, self._held)
            except ConfigError as error:
                raise RunFailedError(f"the cluster has lost nodes: {error.as_flag()}") from None
            if not isinstance(ended, NotPlaced) or chosen.decided.topology != self._decided.topology:
                self.handle(Moved(chosen.decided))

    @property
    def _asked(self) -> Decided:
        """What stays as it is decided when nodes are chosen again."""
        return replace(self._decided, cpus_per_worker=self.cpus)

    @property
    def _held(self) -> Held:
        """What its workers hold of each node."""
        cpus, gpus = self._decided.cpus, self._decided.gpus(self.config)
        return {node: (count * cpus, count * gpus) for node, count in Counter(self._nodes.values()).items()}

    def _start_s(self) -> float:
        """Seconds to wait for room in one attempt: more each time, since another node may have room by then."""
        waited = 0.0 if self._past.waiting_since is None else time.monotonic() - self._past.waiting_since
        return min(max(_FIRST_TRY_S, waited), _LONGEST_TRY_S, max(allocation.start_timeout_s() - waited, 1.0))

    def _hear(self, event: Any) -> None:
        if isinstance(event, Joined):
            self.meter.place(self._decided.placement.nodes, time.time() - event.at)
            self.handle(self.meter.spent)
        elif isinstance(event, Placed):
            self._nodes[event.rank] = event.node_id
        elif isinstance(event, Started):
            self._decided = event.decided
        self.handle(event)

    def _should_stop(self, possible: bool) -> bool:
        if self.check(possible):
            return True
        if self._halts() and not strategies.of(self.config).synchronous:
            raise _HaltError
        self.allocator.request_missing(self.config, self._asked, len(self._nodes))
        if possible and not self._moves and time.monotonic() - self._looked >= _CHECK_S:
            self._looked, why = time.monotonic(), None
            with suppress(ray.exceptions.RayError):  # the head is slow to answer; the next look may succeed
                why = self._leaving() or self._growing()
            if why is not None:
                self._moves = True
                self.handle(why)
        return self._moves or (possible and self._past.limit != "")

    def _leaving(self) -> NodeLeaving | None:
        """A node with workers that the cluster will lose."""
        leaving = optional.draining_nodes()
        return next((NodeLeaving(node, leaving[node]) for node in self._held if node in leaving), None)

    def _growing(self) -> RoomToGrow | None:
        """More workers, once there has been room for some seconds: nodes that start together come one by one."""
        if self.config.elastic is None or len(self._nodes) < self._decided.world_size:  # not all have started yet
            return None
        with suppress(TooSmallError):
            wider = allocation.choose(self.config, self._asked, self._held).decided
            if wider.world_size > self._decided.world_size:
                self._room_since = self._room_since or time.monotonic()
                is_settled = time.monotonic() - self._room_since >= _SETTLED_S
                return RoomToGrow(wider.topology) if is_settled else None
        self._room_since = None
        return None

    def _halts(self) -> bool:
        if not self._past.limit and (spent := self.meter.tick()) is not None:
            self.handle(spent)
            self._past.limit = self.limit(spent)
            if self._past.limit:
                self.handle(LimitReached(self._past.limit))
        return self._past.limit != ""
