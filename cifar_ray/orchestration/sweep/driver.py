"""Begin and continue sweeps, each of which records its runs under one parent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cifar_ray import storage, tracking
from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run.interrupts import signals
from cifar_ray.orchestration.sweep import plan
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.plan import PlannedCell, configured
from cifar_ray.orchestration.sweep.result import SweepResult, repeats_of
from cifar_ray.orchestration.sweep.session import SweepSession
from cifar_ray.runs.folder import discard
from cifar_ray.tracking import parent, reading, store
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.uri import resolve_uri

__all__ = ["SweepResult", "resume", "sweep"]


@tracking.unchanged()
def sweep(config: SweepConfig, command: str = "", begun: float | None = None) -> SweepResult:
    """Train every cell of a sweep, and record all runs under one parent.

    Args:
        config: what to do.
        command: what a person would type to do the same.
        begun: ``time.time()`` from which wall time is counted; now when None.

    Raises:
        ConfigError: on a user's mistake, before anything has run.
        InterruptedRunError: on SIGINT or SIGTERM; the sweep is KILLED in MLflow and can be resumed.
        RunFailedError: when Ray Tune itself fails, or another driver has taken a run over; the sweep is FAILED in
            MLflow and can be resumed.
    """
    begun = begun or time.time()
    imports.refuse_while_importing()
    address = resolve_uri(config.base.tracking_uri)  # a module of the user's may set another one when imported
    config, cells, probes = planned(config)
    with signals():
        tracking.quieten(config.base.verbose)
        client = store.connect(address)
        store.active_experiment(client, parent.experiment_name(config))
        folder, held = plan.create(config, client)
        session = SweepSession(config, folder, client, cells, probes, Budget(config, cells), begun)
        try:
            with held:
                return session.run(lambda: SweepRecord.create(client, config, folder.address, command))
        finally:
            if not session.has_begun:  # so the name is free again
                discard(folder)


def planned(config: SweepConfig) -> tuple[SweepConfig, list[PlannedCell], list[PlannedCell]]:
    """A new sweep that means the same from any folder, its cells, and its probes, as of :func:`plan.probes`."""
    config = plan.absolute(config)
    cells = plan.planned(config)
    probes = plan.probes(config, cells)
    plan.refuse(config, [*cells, *probes])
    return config, cells, probes


@tracking.unchanged()
def resume(
    name: str,
    tracking_uri: str | None = None,
    begun: float | None = None,
    retry_failed: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> SweepResult | None:
    """Train what is left of a sweep, under the same parent.

    Finished runs stay; an interrupted run goes on from its newest checkpoint.

    Args:
        name: the sweep's name.
        tracking_uri: the store that has it.
        begun: as for :func:`sweep`.
        retry_failed: whether runs that have failed go on from their newest checkpoints, too.
        limits: ``max_time`` and ``max_cost`` of the sweep from now on.

    Returns:
        None when nothing is left.

    Raises:
        ConfigError: when there is no such sweep, its folder is gone, another process works on it, it has reached its
            limits, or only failed runs are left and ``retry_failed`` is not given.
        InterruptedRunError: as for :func:`sweep`.
    """
    begun = begun or time.time()
    imports.refuse_while_importing()
    tracking.quieten(verbose=False)
    client, known = reading.open_sweep(resolve_uri(tracking_uri), name)
    config, cells = plan.read(known, limits)
    folder = storage.at(known.folder)
    with signals(), plan.lock(folder):
        plan.find_again(client, known, cells, retry_failed)
        goal = goal_of(config, [run for _, run in configured(cells)])
        if goal is not None and all(cell.state != boards.WAITING for cell in cells):
            cells += repeats_of(goal, config, cells)  # the earlier driver was killed before it had planned them
        if all(cell.state != boards.WAITING for cell in cells):
            if failed := sum(cell.state == boards.FAILED for cell in cells):
                left = f"nothing is left of it but {counted(failed, 'failed run')}"
                raise ConfigError("retry_failed", f"must be given to go on with sweep {name}: {left}")
            return None
        budget = Budget(config, cells, known.metrics.get("sweep/placed_s", 0.0))
        budget.refuse_reached(name)
        begun -= known.metrics.get("sweep/wall_s", 0.0)
        session = SweepSession(config, folder, client, cells, plan.probes(config, cells), budget, begun)
        return session.run(lambda: SweepRecord.reopen(client, known))
