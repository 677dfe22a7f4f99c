"""A run in one piece or several: where its nodes leave or more of them come, it stops and goes on elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import ray

from cifar_ray import strategies
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import allocation, connection, preflight
from cifar_ray.orchestration.cluster.allocation import Sizing
from cifar_ray.orchestration.run import attempt
from cifar_ray.orchestration.run.attempt import RunFailedError, TooSmallError
from cifar_ray.orchestration.run.session import Work
from cifar_ray.training.observer import Launch, Outcome

_LOOK_S = 1.0
_SETTLED_S = 3.0


def train(
    work: Work,
    placement: list[str],
    dataset: ray.ObjectRef,
    launch: Launch,
    check: Callable[[], None],
    places: Sizing,
) -> Outcome:
    """Train to the end, however often the workers have to move.

    Moving because a node leaves with notice, or because there is room for more workers, is no failure. In an elastic
    run, workers that have failed go on wherever there is room then, and so once do workers that were not given their
    places; in others Ray Train starts them again.

    Args:
        work: its config has its topology and device decided.
        placement: the node of every worker.
        dataset: the data in Ray's object store.
        launch: what the driver has done so far.
        check: called several times a second; what it raises ends the run.
        places: finds the next place.

    Raises:
        RunFailedError: when training fails, or no nodes come in time.
    """
    unplaced = 0  # attempts in a row
    tried = set(placement)

    def look() -> None:
        check()
        places.keep(work.config, work.workers_by_node().total())

    while True:
        held, failures = Counter(placement), work.failures
        watch = _Watch(work, places) if _stoppable(work.config) else None
        folder = work.folder.folder
        try:
            found = attempt.run(work.config, placement, dataset, folder, launch, work.listen, look, watch)
        except RunFailedError as error:
            if work.config.elastic is None or not error.recoverable or work.failures > work.config.max_failures:
                raise
            unplaced = unplaced + 1 if work.failures == failures else 0
            if unplaced > 1:
                raise
            if unplaced:
                held.clear()  # others may have what this run had
        else:
            if isinstance(found, Outcome):
                return found
            unplaced = 0
            work.stopped(found.step)
        launch = Launch(time.time(), 0.0)
        config, placement = _place(work, places, held, tried)
        work.move(config)


def _place(work: Work, places: Sizing, held: Counter[str], tried: set[str]) -> tuple[TrainConfig, list[str]]:
    """The next place, of nodes from which the storage can be used; those that are new are ``tried``.

    Raises:
        RunFailedError: when no nodes come in time, or the storage cannot be used from one that is to be part of it.
    """
    while True:
        config, placement = places.place(work.config, held, patient=True)
        try:
            problems = preflight.problems(work.folder.folder, config, set(placement) - tried)
        except OSError:  # the driver itself does not reach it just now, which says nothing of a node
            return config, placement
        if not problems:
            tried.update(placement)
            return config, placement
        for error in problems.values():
            if config.elastic is None:
                raise RunFailedError(error.as_flag())
            work.view.line(f"going on without a node: {error.as_flag()}")
        places.unfit.update(problems)


def _stoppable(config: TrainConfig) -> bool:
    """Whether it can come to a stop between two steps: the workers step together, and nodes may come or go."""
    joined = connection.address(config) is not None
    return strategies.of(config).synchronous and (joined or config.elastic is not None)


@dataclass
class _Watch:
    """Says once when the workers had better stop, having told why."""

    work: Work
    places: Sizing
    _said: bool = False
    _looked: float = 0.0
    _wider_since: float | None = None

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._said or now - self._looked < _LOOK_S:
            return False
        self._looked = now
        with suppress(ray.exceptions.RayError):  # the head is slow to answer; the next look may find more
            self._said = self._leaving() or self._growing(now)
        return self._said

    def _leaving(self) -> bool:
        leaving = connection.draining()
        for node in self.work.workers_by_node():
            if node in leaving:
                self.work.preempted(node, leaving[node])
                return True
        return False

    def _growing(self, now: float) -> bool:
        """Whether there has been room for more workers for some seconds; nodes that start together come one by one."""
        config, held = self.work.config, self.work.workers_by_node()
        if config.elastic is None or held.total() < config.world_size:  # they are not all there yet
            return False
        try:
            wider, _ = allocation.decide(config, held, self.places.unfit)
        except TooSmallError:
            return False
        if wider.world_size <= config.world_size:
            self._wider_since = None
            return False
        self._wider_since = self._wider_since or now
        if now - self._wider_since < _SETTLED_S:
            return False
        self.work.view.line(
            f"there is room for topology {wider.topology}; stopping {config.topology} as soon as possible"
        )
        return True
