"""One Ray Train run: from a config and data in memory to its outcome, told event by event."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchTrainer

from cifar_ray.config import topology
from cifar_ray.config import train as configs
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.cluster.ray_internals import (
    PlacementGroupCleanerCallback,
    get_webui_url_from_internal_kv,
)
from cifar_ray.orchestration.run import events
from cifar_ray.orchestration.run.events import ControllerUp, Inbox, Stopped, WorkersFailed
from cifar_ray.orchestration.run.placement import (
    NODE_ID_LABEL,
    Collectives,
    Failures,
    NotPlacedError,
    Placement,
    Silence,
)
from cifar_ray.storage import Folder
from cifar_ray.training import recipe
from cifar_ray.training.observer import Launch, Outcome, Started

_POLL_S = 0.2
_PLACEMENT_TRY_S = 15.0
_CONTROLLER_START_S = 5.0
_LONGEST_REASON = 200

Listener = Callable[[Any], None]


class RunFailedError(CommandFailedError):
    """The run has ended without its outcome; the sentence says why.

    Attributes:
        recoverable: whether workers have failed in a way that need not come again.
    """

    def __init__(self, sentence: str, recoverable: bool = False) -> None:
        self.recoverable = recoverable
        super().__init__(sentence)


class RayLostError(RunFailedError):
    """Ray itself has ended under the run; nothing can be asked of it any more."""


class TooSmallError(ConfigError):
    """The cluster's nodes do not hold the topology."""


def with_device(config: TrainConfig, nodes: Sequence[Node] | None = None) -> tuple[TrainConfig, list[str]]:
    """Decide between CPU and GPU, and check that the cluster can hold the topology.

    Args:
        config: a resolved config.
        nodes: what there is to choose from; all nodes of the cluster when None.

    Returns:
        The config with its device decided, and the node of every worker.

    Raises:
        TooSmallError: naming what the cluster lacks.
        ConfigError: when the config needs another device.
    """
    nodes = connection.nodes() if nodes is None else nodes
    if config.device != "cpu":
        try:
            chosen = topology.choose(config.placement, nodes, config.cpus_per_worker, config.gpus_per_worker)
            return recipe.on_device(config, "cuda"), chosen
        except ValueError as error:
            if config.device == "cuda":
                raise TooSmallError("topology", str(error)) from None
    try:
        chosen = topology.choose(config.placement, nodes, config.cpus_per_worker)
    except ValueError as error:
        raise TooSmallError("topology", f"{error}{_advice(config)}") from None
    return recipe.on_device(config, "cpu"), chosen


def unused_gpus(asked: TrainConfig, decided: TrainConfig, nodes: Sequence[Node] | None = None) -> str:
    """Why ``--device auto`` has taken CPUs though the cluster has GPUs; empty where it has not.

    Args:
        asked: a resolved config.
        decided: the same with its device decided.
        nodes: as for :func:`with_device`.
    """
    nodes = connection.nodes() if nodes is None else nodes
    if (asked.device, decided.device) != ("auto", "cpu") or not any(node.gpus for node in nodes):
        return ""
    try:
        topology.choose(asked.placement, nodes, asked.cpus_per_worker, asked.gpus_per_worker)
    except ValueError as error:
        return str(error)
    return "they were in use, or have come since"


def _advice(config: TrainConfig) -> str:
    if connection.address(config):
        return ""
    ways = []
    if config.placement.nodes > config.local_nodes:
        ways.append(f"--local-nodes {config.placement.nodes} starts that many nodes on this machine")
    if not config.oversubscribe:
        ways.append("--oversubscribe counts more CPUs than there are")
    return f"; to try it here, {' and '.join(ways)}" if ways else ""


def run(
    config: TrainConfig,
    placement: list[str],
    dataset: ray.ObjectRef,
    folder: Folder,
    launch: Launch,
    listen: Listener,
    check: Callable[[], None],
    leave: Callable[[], bool] | None = None,
) -> Outcome | Stopped:
    """Train on the connected cluster.

    Args:
        config: a resolved config whose device is decided.
        placement: the node of every worker.
        dataset: the data in Ray's object store.
        folder: the run's.
        launch: what the driver has done so far.
        listen: called in this thread with every event of ``events`` and ``training.observer``.
        check: called in this thread several times a second; what it raises ends the run.
        leave: called likewise; once it says so, the workers are asked to stop after the same step.

    Returns:
        Where it has stopped, when it was asked to and there was something left to train.

    Raises:
        RunFailedError: when training fails, for whatever reason.
    """
    inbox = events.open_mailbox(launch)
    gpus = config.gpus_reserved
    payload = {
        "config": configs.to_mapping(config),
        "dataset": dataset,
        "folder": folder,
        "mailbox": inbox.actor,
        "stoppable": leave is not None,
    }
    # Ray Train has a watch of its own for nodes that are drained. It looks every 5 s, tells the workers at a barrier,
    # and starts again at the same size. Where the workers can be stopped between two steps, the driver does: it is
    # the one that chooses the nodes, may change the topology, and writes it all down; two would both start again.
    # Elsewhere (asynchronous strategies, the runs of a sweep) Ray Train's is left on: it waits for the node to go.
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0" if leave is not None else "1"
    # Read by Ray when the run starts. The default of 2 s between polls would hold every epoch's report back.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(min(_PLACEMENT_TRY_S, config.start_timeout_s))
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(config.hang_timeout_s)
    trainer = _Trainer(
        _train_loop,
        train_loop_config=payload,
        torch_config=Collectives(timeout_s=math.ceil(2 * config.hang_timeout_s)),
        scaling_config=_scaling(config, placement, gpus),
        run_config=ray.train.RunConfig(
            name=f"attempt-{time.time_ns()}",
            storage_path=str(folder.disk / "ray_train"),
            failure_config=ray.train.FailureConfig(
                # An elastic run may go on with fewer workers, which its driver decides.
                max_failures=0 if config.elastic else config.max_failures,
                controller_failure_limit=-1,  # of starts; the deadline is Placement's
            ),
            callbacks=[
                Placement(
                    config.placement,
                    config.cpus_per_worker,
                    gpus,
                    config.start_timeout_s,
                    inbox.actor,
                    chosen=placement if config.elastic else None,
                ),
                Failures(inbox.actor),
                Silence(inbox.actor, config.hang_timeout_s),
            ],
            logging_config=ray.train.LoggingConfig(log_level="INFO" if config.verbose else "ERROR"),
        ),
    )
    fitting = _Fitting(trainer)
    last_failure: WorkersFailed | None = None
    controller: Any = None

    asked = False

    def look() -> None:
        nonlocal asked
        check()
        asked = asked or (leave is not None and leave())
        if asked:  # again and again: a mailbox that was lost and has started again does not know
            inbox.ask_to_stop()

    try:
        for event in _until_done(fitting, inbox, look):
            if isinstance(event, ControllerUp):
                controller = event.actor
            elif isinstance(event, WorkersFailed):
                last_failure = event
            elif isinstance(event, Started):
                last_failure = None
            listen(event)
    except RayLostError:
        raise
    except BaseException:
        _end(controller, inbox)
        raise
    if fitting.error is not None:
        unplaced = isinstance(getattr(fitting.error, "controller_failure", None), NotPlacedError)
        recoverable = unplaced or (last_failure is not None and not last_failure.final)
        raise RunFailedError(_reason(fitting.error, last_failure), recoverable) from fitting.error
    assert fitting.outcome is not None, "rank 0 returns the outcome"
    return fitting.outcome.at(time.time()) if isinstance(fitting.outcome, Outcome) else fitting.outcome


def _end(controller: Any, inbox: Inbox) -> None:
    """End the controller, and with it its workers, though it may only just be starting."""
    deadline = time.monotonic() + _CONTROLLER_START_S
    while controller is None and time.monotonic() < deadline:
        controller = next((event.actor for event in inbox.take(1) if isinstance(event, ControllerUp)), None)
    if controller is not None:
        ray.kill(controller)


def _train_loop(payload: dict[str, Any]) -> Outcome | Stopped | None:
    # Imported in the worker alone: the driver and Ray's controller have no use for what it loads.
    from cifar_ray.orchestration.run.worker import train_loop

    return train_loop(payload)


def _scaling(config: TrainConfig, placement: list[str], gpus: int) -> ray.train.ScalingConfig:
    anywhere = config.placement.nodes == 1 and config.elastic is None
    resources = {"CPU": config.cpus_per_worker, **({"GPU": gpus} if gpus else {})}
    return ray.train.ScalingConfig(
        num_workers=config.world_size,
        use_gpu=bool(gpus),
        resources_per_worker=resources,
        placement_strategy="STRICT_PACK" if anywhere else "PACK",
        label_selector=None if anywhere else [{NODE_ID_LABEL: node_id} for node_id in placement],
    )


class _Trainer(TorchTrainer):
    """Ray's trainer, without its watch over the workers' places where that watch is blind.

    It asks the dashboard's server whether the controller lives. A Ray without one, such as that started here for one
    run, gives it no answer, and it does nothing. Where another Ray has left its address on this machine it asks that
    one, in vain, and the run's end waits up to 12 s for it to give up.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        if get_webui_url_from_internal_kv():
            return callbacks
        return [callback for callback in callbacks if not isinstance(callback, PlacementGroupCleanerCallback)]


@dataclass
class _Fitting:
    """``trainer.fit()`` in a thread, so that the main thread can show and record what happens."""

    trainer: TorchTrainer
    outcome: Outcome | Stopped | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True, name="trainer-fit")
        self.thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self.trainer.fit().return_value
        except BaseException as error:  # a dead controller raises what Ray raises, not a TrainingFailedError
            self.error = error


def _until_done(fitting: _Fitting, inbox: Inbox, check: Callable[[], None]) -> Iterator[Any]:
    while fitting.thread.is_alive():
        check()
        fitting.thread.join(_POLL_S)
        yield from inbox.take(timeout_s=5)
    yield from inbox.take(timeout_s=30)


def _reason(error: BaseException, failure: WorkersFailed | None) -> str:
    cause = getattr(error, "controller_failure", None)
    if isinstance(cause, NotPlacedError):
        return str(cause)
    if failure is not None:
        return "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(failure.reasons.items()))
    if isinstance(error, ray.exceptions.RayActorError):  # workers that die are told of as a failure
        return "Ray Train's controller has died: its process was killed, or its node has left"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:_LONGEST_REASON] if lines else type(error).__name__
