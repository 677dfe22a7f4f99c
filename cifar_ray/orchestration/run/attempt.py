"""One start of a run's workers with Ray Train: pass on their events, and tell how they ended."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend
from ray.train.torch import TorchConfig, TorchTrainer

from cifar_ray.config.train import ResolvedConfig
from cifar_ray.orchestration.cluster import allocation, optional
from cifar_ray.orchestration.run import alone
from cifar_ray.orchestration.run.events import Mailbox, Stopped
from cifar_ray.orchestration.run.failures import Failure, Kind
from cifar_ray.orchestration.run.interrupts import RAY_LOST
from cifar_ray.orchestration.run.workers import Attempt, Workers
from cifar_ray.tracking.background import background
from cifar_ray.tracking.variables import variables
from cifar_ray.training.observer import Outcome

_POLL_S = 0.5
_TAKE_S, _LAST_TAKE_S = 5.0, 30.0
_FREE_S = 10.0
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Failed:
    """Workers have raised or died; ``failures`` by rank, ``stacks`` as of :class:`Workers`."""

    failures: dict[int, Failure]
    stacks: dict[int, str]


@dataclass(frozen=True)
class NotPlaced:
    """No worker has started in time."""


Ended = Outcome | Stopped | Failed | NotPlaced


def run(attempt: Attempt, handle: Callable[[Any], None], check: Callable[..., bool]) -> Ended:
    """Train on the connected cluster.

    Args:
        attempt: what to train, and where.
        handle: called in this thread with every event of ``events`` and ``training.observer``.
        check: called in this thread several times a second with whether the workers could stop between two steps
            now. It returns whether they should; what it raises ends them at once.
    """
    config, mailbox = attempt.config, attempt.mailbox
    workers = Workers(config.hang_timeout_s)
    ended: Outcome | Stopped | None = None
    mailbox.ask_to_stop(False)
    with variables(_settings(config, attempt.start_s)):
        fitting = background(_fit(attempt), "trainer-fit")
        with ending(fitting, workers, mailbox):
            is_last = False
            while not is_last:
                is_last = fitting.done()
                if check(workers.training and attempt.can_stop):  # each time: a mailbox that was restarted forgot it
                    mailbox.ask_to_stop()
                wait([fitting], _POLL_S)
                for event in mailbox.take(_LAST_TAKE_S if is_last else _TAKE_S):
                    if isinstance(event, Outcome | Stopped):
                        ended = event.at(time.time()) if isinstance(event, Outcome) else event
                    else:
                        workers.hear(event)
                        handle(event)
                workers.end_silent()
    if ended is not None:
        return ended
    allocation.remove_abandoned()  # of a controller that was killed
    return _failed(fitting.exception(), workers)


@contextmanager
def ending(fitting: Future[Any], workers: Workers, mailbox: Mailbox) -> Iterator[None]:
    """Context manager: an exception in its body ends the ``workers`` of the trainer that is ``fitting``."""
    try:
        yield
    except RAY_LOST:  # there is nothing left to end
        raise
    except BaseException:
        mailbox.ask_to_stop()  # those that are only starting
        workers.kill()
        wait([fitting], _FREE_S)
        allocation.remove_abandoned()
        raise


def _failed(error: BaseException | None, workers: Workers) -> Failed | NotPlaced:
    if isinstance(error, ray.train.WorkerGroupError):
        return Failed(workers.left(error.worker_failures), workers.stacks)
    if isinstance(error, ray.train.ControllerError) and not (workers.failures or workers.joined):
        return NotPlaced()
    return Failed(workers.failures or {0: Failure(Kind.OTHER, _sentence(error))}, workers.stacks)


def _sentence(error: BaseException | None) -> str:
    """What has ended Ray Train's trainer."""
    if error is None:
        return "its result was lost with the mailbox"
    if isinstance(error, ray.exceptions.RayActorError):
        return "Ray Train's controller has died: its process was killed, or its node has left"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:_LONGEST_REASON] if lines else type(error).__name__


def _fit(attempt: Attempt) -> Callable[[], Any]:
    """What starts the workers, and returns when they have ended; it restarts nothing."""
    config, world_size = attempt.config, attempt.decided.world_size
    if world_size == 1:
        return partial(alone.fit, attempt)
    known = [field.name for field in dataclasses.fields(ray.train.FailureConfig)]
    none = dict.fromkeys(("max_failures", "controller_failure_limit", "max_preemption_failures"), 0)
    quiet: dict[str, Any] = {}
    if not config.verbose and hasattr(ray.train, "LoggingConfig"):
        quiet = {"logging_config": ray.train.LoggingConfig(log_level="ERROR")}
    return optional.lean(TorchTrainer)(
        _train_loop,
        train_loop_config={"attempt": attempt},
        torch_config=_NoProcessGroup(timeout_s=math.ceil(2 * config.hang_timeout_s)),
        scaling_config=ray.train.ScalingConfig(
            num_workers=world_size,
            use_gpu="GPU" in attempt.bundle,
            resources_per_worker=attempt.bundle,
            placement_strategy="PACK" if attempt.selectors else "STRICT_PACK",
            label_selector=attempt.selectors,
        ),
        run_config=ray.train.RunConfig(
            name=f"attempt-{time.time_ns()}",
            storage_path=str(attempt.folder.disk / "ray_train"),
            failure_config=ray.train.FailureConfig(**{name: zero for name, zero in none.items() if name in known}),
            **quiet,
        ),
    ).fit


def _settings(config: ResolvedConfig, start_s: float) -> dict[str, str]:
    """Variables that Ray Train reads when the trainer starts, which waits so many seconds for room."""
    return {
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(start_s),
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # the default of 2 s would delay the end of every attempt
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # an actor of its own; the driver asks for nodes that leave
        # The driver ends a worker that does not answer, after keeping its stacks; Ray does if the driver cannot.
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(1.5 * config.hang_timeout_s),
    }


def _train_loop(given: dict[str, Attempt]) -> None:
    # Imported in the worker only: the driver and Ray's controller do not need what it loads.
    from cifar_ray.orchestration.run.train_worker import train_loop

    context = ray.train.get_context()
    train_loop(given["attempt"], context.get_world_rank())


class _WorkersConnect(Backend):
    """Leaves the process group to the workers, but lets those of a node see each other's GPUs, as NCCL needs."""

    share_cuda_visible_devices = True


class _NoProcessGroup(TorchConfig):
    """``TorchConfig`` that starts no process group: it could not choose the network interface."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _WorkersConnect
