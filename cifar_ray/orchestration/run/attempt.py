"""One Ray Train run: start it, pass on its events, and return its outcome or raise why it failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import ray

from cifar_ray.config.errors import RunFailedError
from cifar_ray.orchestration.cluster import reservations
from cifar_ray.orchestration.run import events, trainer
from cifar_ray.orchestration.run.background import Background
from cifar_ray.orchestration.run.callbacks import NotPlacedError
from cifar_ray.orchestration.run.events import ControllerStarted, Mailbox, Placed, Stopped, WorkersFailed
from cifar_ray.orchestration.run.interrupts import RAY_LOST
from cifar_ray.orchestration.run.trainer import Attempt
from cifar_ray.training.observer import Outcome, Started

_POLL_S = 0.5
_TAKE_S, _LAST_TAKE_S = 5.0, 30.0
_CONTROLLER_START_S, _ABORT_S = 5.0, 5.0
_FREE_S, _SETTLED_S = 5.0, 1.0
_LONGEST_REASON = 200


def run(attempt: Attempt, handle: Callable[[Any], None], check: Callable[[], bool]) -> Outcome | Stopped:
    """Train on the connected cluster.

    Args:
        attempt: what to train, and where.
        handle: called in this thread with every event of ``events`` and ``training.observer``.
        check: called in this thread several times a second. It returns True when the workers should stop between two
            steps, all after the same one; what it raises ends the run.

    Returns:
        The outcome; or after which step the workers have stopped, if some were left to train.

    Raises:
        RunFailedError: when training fails, for whatever reason.
    """
    mailbox = events.open_mailbox(attempt.launch)
    fitting = Background(trainer.build(attempt, mailbox).fit, "trainer-fit")
    controller: Any = None
    running = False
    failure: WorkersFailed | None = None
    try:
        for event in _events(fitting, mailbox, check):
            if isinstance(event, ControllerStarted):
                controller = event.actor
            elif isinstance(event, WorkersFailed):
                failure, running = event, False
            elif isinstance(event, Placed):
                running = True
            elif isinstance(event, Started):
                failure = None
            handle(event)
    except RAY_LOST:  # there is nothing left to end
        raise
    except BaseException:
        _end(controller, running, fitting, mailbox)
        raise
    if isinstance(fitting.error, ray.exceptions.RayActorError):
        _free(controller)
    if fitting.error is not None:
        raise _failed(fitting.error, failure) from fitting.error
    assert fitting.result is not None
    outcome = fitting.result.return_value
    assert outcome is not None, "rank 0 returns the outcome"
    return outcome.at(time.time()) if isinstance(outcome, Outcome) else outcome


def _events(fitting: Background[Any], mailbox: Mailbox, check: Callable[[], bool]) -> Iterator[Any]:
    """Events until the trainer has ended."""
    stopping = False
    while fitting.running:
        stopping = check() or stopping
        if stopping:  # again and again: a mailbox that was restarted does not know
            mailbox.ask_to_stop()
        fitting.wait(_POLL_S)
        yield from mailbox.take(_TAKE_S)
    yield from mailbox.take(_LAST_TAKE_S)


def _end(controller: Any, running: bool, fitting: Background[Any], mailbox: Mailbox) -> None:
    """End the controller and its workers, even if they are only starting, and free what they hold."""
    mailbox.cancel()
    deadline = time.monotonic() + _CONTROLLER_START_S
    while controller is None and fitting.running and time.monotonic() < deadline:
        controller = next((event.actor for event in mailbox.take(1) if isinstance(event, ControllerStarted)), None)
    if controller is None:  # once it has started, it ends by itself
        return
    if running:  # otherwise it waits for workers or room, and answers no call
        ray.wait([controller.abort.remote()], timeout=_ABORT_S)
    ray.kill(controller)
    _free(controller)
    fitting.wait(_FREE_S)


def _free(controller: Any) -> None:
    """Free what a controller holds that was killed: its process may make a placement group until it notices."""
    killed = time.monotonic()
    while controller is not None and time.monotonic() < killed + _FREE_S:
        reservations.remove_abandoned()
        time.sleep(_POLL_S / 5)
        if time.monotonic() > killed + _SETTLED_S and not reservations.held_by(controller._actor_id.hex()):
            return


def _failed(error: BaseException, failure: WorkersFailed | None) -> RunFailedError:
    """What to raise for an error of the trainer; ``failure`` is that of its last workers."""
    cause = getattr(error, "controller_failure", None)
    if isinstance(cause, NotPlacedError):
        return RunFailedError(str(cause), recoverable=True)
    if failure is not None:
        return RunFailedError(str(failure), recoverable=not failure.final)
    if isinstance(error, ray.exceptions.RayActorError):  # when workers die, there is a failure
        return RunFailedError("Ray Train's controller has died: its process was killed, or its node has left")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RunFailedError(lines[-1][:_LONGEST_REASON] if lines else type(error).__name__)
