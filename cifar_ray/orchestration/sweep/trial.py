"""One run of a sweep, in a process of Ray Tune's: what ``cifar-ray train`` does between Ray and the result."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
import ray.tune

from cifar_ray.config import train as configs
from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.run import attempt
from cifar_ray.orchestration.run.attempt import RunFailedError
from cifar_ray.storage import Folder
from cifar_ray.training.observer import EpochRecord, Launch, Outcome

_DELIVERY_S = 30


@dataclass(frozen=True)
class Plan:
    """What a trial is to do; ``config`` is resolved and in plain values."""

    config: dict[str, Any]
    folder: Folder


@dataclass(frozen=True)
class Begun:
    """A trial's process has taken it up, when ``time.time()`` was ``at``."""

    at: float


@dataclass(frozen=True)
class Ended:
    """A trial is over; without an outcome, ``reason`` says why."""

    outcome: Outcome | None
    reason: str = ""


@dataclass(frozen=True)
class Told:
    """An event of one trial, by its place in the sweep."""

    index: int
    event: Any


def drive(cell: dict[str, int], plans: dict[int, Plan], datasets: dict[str, Any], mailbox: Any) -> None:
    """Ray Tune's function trainable: build the run's ``TorchTrainer``, and tell the sweep's driver what happens.

    Args:
        cell: ``index``, the trial's place in the sweep.
        plans: every trial's plan by its place.
        datasets: data set name -> reference into Ray's object store.
        mailbox: the sweep's.
    """
    index = cell["index"]
    plan = plans[index]
    begun = time.time()
    config = configs.from_mapping(plan.config)

    def tell(event: Any) -> Any:
        return mailbox.post.remote(Told(index, event))

    def listen(event: Any) -> None:
        tell(event)
        # After its last epoch a run is not to be stopped any more.
        if isinstance(event, EpochRecord) and event.row.step < config.epochs:
            metrics = event.row.metrics
            ray.tune.report({"epoch": event.row.step, "accuracy": metrics["test/accuracy"], **metrics})

    tell(Begun(begun))
    try:
        config, placement = attempt.with_device(config)
        launch = Launch(begun, 0.0)
        outcome = attempt.run(config, placement, datasets[config.dataset], plan.folder, launch, listen, lambda: None)
        assert isinstance(outcome, Outcome), "nobody asks a trial to stop"
        ended = Ended(outcome)
    except (RunFailedError, ConfigError) as error:
        ended = Ended(None, str(error))
    except Exception as error:  # whatever it is, the sweep goes on and says why
        ended = Ended(None, f"{type(error).__name__}: {error}")
    ray.get(tell(ended), timeout=_DELIVERY_S)
