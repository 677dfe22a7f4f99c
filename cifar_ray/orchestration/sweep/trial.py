"""One run of a sweep, in a process of Ray Tune's: what ``cifar-ray train`` does between Ray and the result."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import ray.tune

from cifar_ray import data
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import allocation
from cifar_ray.orchestration.cluster.allocation import NodeAllocator, TooSmallError
from cifar_ray.orchestration.run import events, limits
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.run.limits import Meter, Spent
from cifar_ray.orchestration.run.restarts import Halt, Run
from cifar_ray.storage import Folder
from cifar_ray.tracking.background import background
from cifar_ray.training.observer import EpochRecord, Launch, Outcome

BY_SWEEP = "sweep"
"""What stops a run when its sweep has reached a limit; only the driver knows which."""

FAILED = "failed"
"""Key of the last result of a run that has failed, and has no figures."""

_DELIVERY_S = 30
_STOP_S = 30.0
_ANSWER_S = 1.0


def dataset_key(config: ResolvedConfig, decided: Decided) -> str:
    """By what a sweep knows a data set: others may have the same samples with other facts."""
    return f"{config.dataset} {decided.facts.digest}"


@dataclass(frozen=True)
class TrialSpec:
    """What a trial's process is to train: a resolved config, and all that it leaves open but the nodes.

    ``index`` is its number in the sweep.
    """

    index: int
    config: ResolvedConfig
    decided: Decided
    folder: Folder

    def __str__(self) -> str:
        return str(self.index)  # Ray Tune has it in the trial's tag


@dataclass(frozen=True)
class TrialStarted:
    """A trial's process has started, when ``time.time()`` was ``at``."""

    at: float


@dataclass(frozen=True)
class TrialFinished:
    """A trial has ended; without an outcome, ``reason`` says why, or ``stopped_by`` which limit has stopped it."""

    outcome: Outcome | None
    reason: str = ""
    stopped_by: str = ""


@dataclass(frozen=True)
class TrialTooLarge:
    """The cluster has lost nodes, and ``reason`` says what a trial lacks; it has not begun, or has failed."""

    reason: str


@dataclass(frozen=True)
class TrialEvent:
    """An event of one trial, with the trial's index in the sweep."""

    index: int
    event: Any


class _StoppedEarlyError(Exception):
    """Ray Tune has stopped the trial, or the whole sweep."""


class SweepTrial(ray.tune.Trainable):
    """Ray Tune's trainable: train one run with Ray Train, and post its events to the sweep's driver.

    A class and not a function, because Ray Tune calls its ``cleanup`` before it ends the process: the run's workers
    are stopped there, and their CPUs are free.
    """

    def setup(self, config: dict[str, TrialSpec], datasets: dict[str, Any], mailbox: Mailbox) -> None:
        """Begin the run of ``config["trial"]`` on one of these data sets in Ray's object store, by their keys."""
        self._datasets, self._mailbox = datasets, mailbox
        self._runs_mailbox: Mailbox | None = None
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, TrialSpec]) -> bool:
        """Begin another trial's run in the same process; the one before has ended."""
        self._reports: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._running = background(partial(self._drive, new_config["trial"]), "trial")
        return True

    def step(self) -> dict[str, Any]:
        """Wait for an epoch's metrics, or the end."""
        return self._reports.get()

    def cleanup(self) -> None:
        """Stop the run, if it has not ended."""
        self._stopping.set()
        wait([self._running], _STOP_S)

    def _drive(self, spec: TrialSpec) -> None:
        begun = time.time()
        answer: Any = None
        latest: Mapping[str, float] = {}

        def handle(event: Any) -> None:
            nonlocal answer, latest
            answer = self._mailbox.post(TrialEvent(spec.index, event))
            if isinstance(event, EpochRecord):
                latest = event.row.metrics
                if event.row.step < spec.config.epochs:  # a run is not to be stopped after its last epoch
                    self._reports.put({"epoch": event.row.step, **latest})

        def check(can_stop: bool = False) -> bool:
            asked = self._stopping.is_set()
            if asked and not can_stop:
                raise _StoppedEarlyError
            return asked

        own = limits.of_run(spec.config)

        def limit(spent: Spent) -> str:
            """The run's own limits, and the sweep's, of which the driver tells in its answers."""
            with suppress(ray.exceptions.RayError):  # the mailbox restarts, and the next event asks again
                if ray.wait([answer], timeout=_ANSWER_S)[0] and ray.get(answer):
                    return BY_SWEEP
            return own(spent)

        finished: TrialFinished | TrialTooLarge
        try:
            data.keep(spec.config, spec.decided.facts)
            chosen = allocation.at_topology(spec.config, spec.decided)
            handle(TrialStarted(begun))
            dataset = self._datasets[dataset_key(spec.config, spec.decided)]
            with NodeAllocator(lambda *_: None, check) as allocator:
                # One that a run has used to its end serves the next; one that has failed may leave events behind.
                inbox, self._runs_mailbox = self._runs_mailbox or events.open_mailbox(), None
                meter = Meter(spec.folder)
                given = (spec.config, spec.decided.cpus_per_worker)
                run = Run(*given, spec.folder, dataset, handle, check, allocator, inbox, meter, limit)
                outcome = run.train(chosen, Launch(begun, 0.0))
            if isinstance(outcome, Halt):
                finished = TrialFinished(None, stopped_by=outcome.by)
            else:
                finished = TrialFinished(outcome)
                self._runs_mailbox = inbox
        except TooSmallError as error:
            finished = TrialTooLarge(str(error))
        except _StoppedEarlyError:
            return
        except (RunFailedError, ConfigError) as error:
            finished = TrialFinished(None, str(error))
        except Exception as error:  # the sweep goes on and says why
            finished = TrialFinished(None, f"{type(error).__name__}: {error}")
        with suppress(ray.exceptions.RayError, TimeoutError):  # the driver sees a trial that has not reported its end
            ray.get(self._mailbox.post(TrialEvent(spec.index, finished)), timeout=_DELIVERY_S)
        self._reports.put({**last_result(finished, spec.config.epochs, latest), "done": True})


def last_result(
    finished: TrialFinished | TrialTooLarge, epochs: int, latest: Mapping[str, float]
) -> Mapping[str, float]:
    """What Ray Tune gets of a trial that has ended: the figures of its end, or the ``latest`` if it has stopped.

    Schedulers count nothing of epoch 0.
    """
    if isinstance(finished, TrialFinished) and finished.outcome is not None:
        return {"epoch": epochs, **finished.outcome.metrics, **finished.outcome.times}
    if isinstance(finished, TrialFinished) and finished.stopped_by:
        return {"epoch": 0, **latest}
    return {"epoch": 0, FAILED: 1.0}
