"""Run a sweep: from a grid to runs recorded under one parent."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from cifar_ray import storage, tracking
from cifar_ray.config import imports
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run import run_folder
from cifar_ray.orchestration.run.interrupts import signals
from cifar_ray.orchestration.sweep import planner, preparation
from cifar_ray.orchestration.sweep.driver import Driver, SweepResult
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.limits import Budget
from cifar_ray.orchestration.sweep.winner import repeats_of
from cifar_ray.tracking import parent, reading, store
from cifar_ray.tracking.parent import SweepRecord


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
    config = planner.absolute(config)
    base = config.base
    address = store.resolve_uri(base.tracking_uri)  # a module of the user's may set another one when it is imported
    trials = planner.planned(config)
    planner.refuse(config, trials)
    if config.search == "optuna":
        trials = planner.open_trials(config)
    with signals():
        tracking.quieten(base.verbose)
        client = store.connect(address)
        store.active_experiment(client, parent.experiment_name(config))
        folder, held = planner.create(config, client)
        record: SweepRecord | None = None

        def begin() -> SweepRecord:
            nonlocal record
            planner.write_cells(folder, [trial.described(config) for trial in trials])
            record = SweepRecord.create(client, config, folder.address, command)
            return record

        try:
            with held:
                return Driver(config, folder, client, trials, begun).run(begin)
        finally:
            if record is None:  # nothing has begun, so the name is free again
                run_folder.discard(folder)


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
    client, known = reading.open_sweep(store.resolve_uri(tracking_uri), name)
    config, trials = planner.read(known)
    config = dataclasses.replace(config, **limits or {})
    folder = storage.at(known.folder)
    with signals(), planner.lock(folder):
        earlier = {run.key: run for run in reading.trials(client, known)}
        for trial in trials:
            trial.find_again(folder, earlier)
            if retry_failed and trial.state == boards.FAILED:
                trial.state, trial.reason = boards.WAITING, ""
        goal = goal_of(config, [run for _, run in preparation.configured(trials)])
        if goal is not None and all(trial.state != boards.WAITING for trial in trials):
            trials += repeats_of(goal, config, trials)  # the earlier driver was killed before it had planned them
            planner.write_cells(folder, [trial.described(config) for trial in trials])
        if all(trial.state != boards.WAITING for trial in trials):
            if failed := sum(trial.state == boards.FAILED for trial in trials):
                left = f"nothing is left of it but {counted(failed, 'failed run')}"
                raise ConfigError("retry_failed", f"must be given to go on with sweep {name}: {left}")
            return None
        budget = Budget(config, trials, known.metrics.get("sweep/placed_s", 0.0))
        budget.refuse_reached(name)
        return Driver(config, folder, client, trials, begun - known.metrics.get("sweep/wall_s", 0.0), budget).run(
            lambda: SweepRecord.reopen(client, known)
        )
