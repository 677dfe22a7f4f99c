"""Train a run in one segment or several: when its nodes leave or more are added, it stops and goes on elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import ray

from cifar_ray import strategies
from cifar_ray.config.errors import RunFailedError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import allocation, connection, preflight
from cifar_ray.orchestration.cluster.allocation import Allocation, NodeAllocator, TooSmallError
from cifar_ray.orchestration.run import attempt
from cifar_ray.orchestration.run.events import Moved, NodeLeaving, RoomToGrow
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.run.trainer import Attempt
from cifar_ray.training.observer import Launch, Outcome

_CHECK_S = 1.0
_SETTLED_S = 3.0


def train(
    session: RunSession,
    chosen: Allocation,
    dataset: ray.ObjectRef,
    launch: Launch,
    check: Callable[[], None],
    allocator: NodeAllocator,
) -> Outcome:
    """Train to the end, however often the workers have to move.

    A move because a node leaves with notice, or because there is room for more workers, is not a failure. An elastic
    run moves after a failure, too, and once if its workers could not start; for other runs Ray Train restarts them.

    Args:
        session: the run.
        chosen: where it starts.
        dataset: the data in Ray's object store.
        launch: what the driver has done so far.
        check: called several times a second; what it raises ends the run.
        allocator: chooses the nodes for the next segment.

    Raises:
        RunFailedError: when training fails, or no nodes come in time.
    """
    run = _Segments(session, check, allocator, tested=set(chosen.nodes))
    while True:
        next_one = Attempt(
            chosen, dataset, session.folder.folder, launch, _stoppable(chosen.config), session.last_failure
        )
        ended = run.segment(next_one)
        if isinstance(ended, Outcome):
            return ended
        launch = Launch(time.time(), 0.0)
        chosen = run.allocate(Counter(chosen.nodes) if run.not_placed == 0 else Counter())
        session.handle(Moved(chosen.config))


def _stoppable(config: TrainConfig) -> bool:
    """Whether workers can stop between two steps and may have to: they step together, and nodes may come or go."""
    joined = connection.address(config) is not None
    return strategies.of(config).synchronous and (joined or config.elastic is not None)


@dataclass
class _Segments:
    """The segments of one run.

    Attributes:
        tested: nodes from which the storage can be used.
        not_placed: how many segments in a row ended before their workers had started.
    """

    session: RunSession
    check: Callable[[], None]
    allocator: NodeAllocator
    tested: set[str]
    not_placed: int = 0

    def segment(self, next_one: Attempt) -> Outcome | None:
        """Train one segment.

        Returns:
            None when the run can go on elsewhere.

        Raises:
            RunFailedError: when it cannot.
        """
        session, failures = self.session, self.session.failures
        watch = _Watch(session, self.allocator)

        def check() -> bool:
            self.check()
            self.allocator.request_missing(session.config, session.workers_by_node().total())
            return next_one.stoppable and watch.should_stop()

        try:
            ended = attempt.run(next_one, session.handle, check)
        except RunFailedError as error:
            config = session.config
            if config.elastic is None or not error.recoverable or session.failures > config.max_failures:
                raise
            self.not_placed = self.not_placed + 1 if session.failures == failures else 0
            if self.not_placed > 1:
                raise
            return None
        if isinstance(ended, Outcome):
            return ended
        self.not_placed = 0
        session.handle(ended)
        return None

    def allocate(self, held: Counter[str]) -> Allocation:
        """Choose nodes for the next segment, and test the storage from those that are new.

        Args:
            held: node id -> workers that the run had there and may have again.

        Raises:
            RunFailedError: when no nodes come in time, or the storage cannot be used from one of them.
        """
        session = self.session
        while True:
            chosen = self.allocator.allocate(session.config, held, patient=True)
            untested = set(chosen.nodes) - self.tested
            nodes = [node for node in connection.nodes() if node.node_id in untested] if untested else []
            try:
                problems = preflight.problems(session.folder.folder, chosen.config, nodes)
            except OSError:  # the driver itself cannot reach the storage now, which says nothing about a node
                return chosen
            if not problems:
                self.tested.update(chosen.nodes)
                return chosen
            for error in problems.values():
                if chosen.config.elastic is None:
                    raise RunFailedError(error.as_flag())
                session.view.line(f"going on without a node: {error.as_flag()}")
            self.allocator.excluded.update(problems)


@dataclass
class _Watch:
    """Decides when the workers of a segment should stop to go on elsewhere."""

    session: RunSession
    allocator: NodeAllocator
    _decided: bool = False
    _checked: float = 0.0
    _room_since: float | None = None

    def should_stop(self) -> bool:
        """Return True once when workers should stop; the session logs why."""
        now = time.monotonic()
        if self._decided or now - self._checked < _CHECK_S:
            return False
        self._checked = now
        with suppress(ray.exceptions.RayError):  # the head is slow to answer; the next check may succeed
            decision = self._leaving() or self._growing(now)
            if decision is not None:
                self._decided = True
                self.session.handle(decision)
        return self._decided

    def _leaving(self) -> NodeLeaving | None:
        leaving = connection.draining()
        nodes = (node for node in self.session.workers_by_node() if node in leaving)
        return next((NodeLeaving(node, leaving[node]) for node in nodes), None)

    def _growing(self, now: float) -> RoomToGrow | None:
        """More workers, once there has been room for some seconds: nodes that start together come one by one."""
        config, held = self.session.config, self.session.workers_by_node()
        if config.elastic is None or held.total() < config.world_size:  # they have not all started yet
            return None
        try:
            wider = allocation.choose(config, held, self.allocator.excluded).config
        except TooSmallError:
            return None
        if wider.world_size <= config.world_size:
            self._room_since = None
            return None
        self._room_since = self._room_since or now
        return RoomToGrow(wider.topology) if now - self._room_since >= _SETTLED_S else None
