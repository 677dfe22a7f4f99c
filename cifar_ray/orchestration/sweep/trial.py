"""One run of a sweep, in a process of Ray Tune's: what ``cifar-ray train`` does between Ray and the result."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
import ray.tune

from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import allocation
from cifar_ray.orchestration.run import attempt
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.run.trainer import Attempt
from cifar_ray.storage import Folder
from cifar_ray.training.observer import EpochRecord, Launch, Outcome

_DELIVERY_S = 30


@dataclass(frozen=True)
class TrialSpec:
    """What a trial's process is to train; its config is resolved."""

    config: ResolvedConfig
    folder: Folder


@dataclass(frozen=True)
class TrialStarted:
    """A trial's process has started, when ``time.time()`` was ``at``."""

    at: float


@dataclass(frozen=True)
class TrialFinished:
    """A trial has ended; without an outcome, ``reason`` says why."""

    outcome: Outcome | None
    reason: str = ""


@dataclass(frozen=True)
class TrialEvent:
    """An event of one trial, with the trial's index in the sweep."""

    index: int
    event: Any


def drive(cell: dict[str, int], specs: dict[int, TrialSpec], datasets: dict[str, Any], mailbox: Mailbox) -> None:
    """Ray Tune's function trainable: train one run with Ray Train, and post its events to the sweep's driver.

    Args:
        cell: ``index``, the trial's index in the sweep.
        specs: every trial's by its index.
        datasets: ``dataset_key`` -> reference into Ray's object store.
        mailbox: the sweep's.
    """
    index = cell["index"]
    spec = specs[index]
    begun = time.time()
    config = spec.config

    def handle(event: Any) -> None:
        mailbox.post(TrialEvent(index, event))
        # A run is not to be stopped after its last epoch.
        if isinstance(event, EpochRecord) and event.row.step < config.epochs:
            metrics = event.row.metrics
            ray.tune.report({"epoch": event.row.step, "accuracy": metrics["test/accuracy"], **metrics})

    handle(TrialStarted(begun))
    try:
        chosen = allocation.at_topology(config)
        one = Attempt(chosen, datasets[config.dataset_key], spec.folder, Launch(begun, 0.0))
        outcome = attempt.run(one, handle, lambda: False)
        assert isinstance(outcome, Outcome), "trials are not asked to stop"
        finished = TrialFinished(outcome)
    except (RunFailedError, ConfigError) as error:
        finished = TrialFinished(None, str(error))
    except Exception as error:  # the sweep goes on and says why
        finished = TrialFinished(None, f"{type(error).__name__}: {error}")
    ray.get(mailbox.post(TrialEvent(index, finished)), timeout=_DELIVERY_S)
