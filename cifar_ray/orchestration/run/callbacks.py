"""Callbacks in Ray Train's controller: place workers, report failures and silent workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.train import UserCallback

from cifar_ray.config import topology
from cifar_ray.config.errors import RunFailedError
from cifar_ray.config.topology import Topology
from cifar_ray.orchestration.cluster import connection, ray_internals, reservations
from cifar_ray.orchestration.cluster.ray_internals import (
    ControllerCallback,
    RunningState,
    WorkerGroupCallback,
)
from cifar_ray.orchestration.run import failures
from cifar_ray.orchestration.run.events import ControllerStarted, Mailbox, NoRoom, Silent, WorkersFailed

NODE_ID_LABEL = "ray.io/node-id"
_REPORT_S = 60.0


class NotPlacedError(RuntimeError):
    """The workers were not placed in time."""


class Placement(ControllerCallback):
    """Choose the nodes before each start of the workers; give up after ``start_timeout_s`` seconds.

    Ray packs or spreads, but cannot place exactly W workers on each of N nodes; one label selector per worker does.
    The selectors are renewed before every start, since after a failure other nodes may be alive. Ray tries to start
    workers for ever; this callback ends that.

    The nodes of an elastic run are ``chosen`` by its driver, by what is free on them. When one has left, the run
    returns to the driver, which chooses again.
    """

    def __init__(
        self,
        wanted: Topology,
        cpus_per_worker: int,
        gpus_per_worker: int,
        start_timeout_s: float,
        mailbox: Mailbox,
        chosen: Sequence[str] | None = None,
    ) -> None:
        self._wanted = wanted
        self._cpus, self._gpus = cpus_per_worker, gpus_per_worker
        self._timeout_s = start_timeout_s
        self._mailbox = mailbox
        self._chosen = chosen
        self._scaling_config: Any = None
        self._trying_since: float | None = None

    def after_controller_start(self, train_run_context: Any) -> None:
        self._scaling_config = train_run_context.scaling_config
        self._mailbox.post(ControllerStarted(ray.get_runtime_context().current_actor))

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        if isinstance(current_state, RunningState):
            self._trying_since = None

    def before_controller_execute_resize_decision(self, resize_decision: Any) -> None:
        if self._mailbox.cancelled():
            raise NotPlacedError("the run was stopped before its workers had started")
        now = time.monotonic()
        if self._trying_since is None:
            self._trying_since = now
        elif now - self._trying_since >= self._timeout_s:
            raise NotPlacedError(  # Ray Train retries its own errors only
                f"the workers of topology {self._wanted} could not be placed within {self._timeout_s:g} s "
                f"(--start-timeout-s): {reservations.holders('GPU' if self._gpus else 'CPU')}"
            )
        else:
            self._mailbox.post(NoRoom(now - self._trying_since))
        if self._chosen is not None:
            if not set(self._chosen) <= {node.node_id for node in connection.nodes()}:
                raise NotPlacedError(f"a node has left before the workers of topology {self._wanted} had started on it")
            return
        if self._wanted.nodes == 1:
            return  # STRICT_PACK finds a free node by itself
        try:
            chosen = topology.choose(self._wanted, connection.nodes(), self._cpus, self._gpus)
        except ValueError:
            return  # too few nodes now: this start times out, and the next one chooses again
        self._scaling_config.label_selector = [{NODE_ID_LABEL: node_id} for node_id in chosen]


class Failures(UserCallback):
    """Report failed workers to the driver, and end a run that would fail again.

    A class of its own, because Ray Train calls only this hook on a ``UserCallback``.
    """

    def __init__(self, mailbox: Mailbox, last: WorkersFailed | None = None) -> None:
        self._mailbox = mailbox
        self._last = last

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        causes = {rank: ray_internals.cause(error) for rank, error in worker_exceptions.items()}
        self._last = failures.judge(causes, self._last)
        self._mailbox.post(self._last)
        self._mailbox.relaunch(time.time())
        if self._last.final:
            raise RunFailedError(str(self._last))  # raising here ends the run without another attempt


class Silence(WorkerGroupCallback):
    """Report a worker whose process does not answer.

    Ray Train polls every process at short intervals and restarts the workers when one is silent for too long, but
    reports nothing until then.
    """

    def __init__(self, mailbox: Mailbox, timeout_s: float) -> None:
        self._mailbox = mailbox
        self._report_after_s = min(_REPORT_S, timeout_s / 2)
        self._group: Any = None
        self._reported: set[int] = set()

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._group = worker_group
        self._reported.clear()

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        waiting = ray_internals.unanswered_since(self._group)
        self._reported &= set(waiting)  # those that have answered may become silent again
        for rank, since in waiting.items():
            silent = time.monotonic() - since
            if silent >= self._report_after_s and rank not in self._reported:
                self._reported.add(rank)
                self._mailbox.post(Silent(rank, silent))
