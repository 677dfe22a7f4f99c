"""What a sweep would train, without Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cifar_ray import storage, tracking
from cifar_ray.config.decided import Decided
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import connection, local
from cifar_ray.orchestration.sweep import planner, preparation, proposals
from cifar_ray.orchestration.sweep.limits import Budget
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.tracking import reading, store


@dataclass(frozen=True)
class DryRow:
    """One run of the sweep.

    Attributes:
        name: its name.
        topology: NODESxWORKERS; empty where its values are still to be proposed.
        state: ``waiting``, ``skipped``, or how an earlier driver has left it.
        reason: why it is skipped, or not known yet; else empty.
    """

    name: str
    topology: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class DryRun:
    """What a sweep would train.

    Attributes:
        name: of the sweep.
        rows: its runs.
        at_once: how many would train at a time; None where the cluster is not looked at.
        notes: what is not looked at, in sentences.
    """

    name: str
    rows: tuple[DryRow, ...]
    at_once: int | None
    notes: tuple[str, ...]


@tracking.unchanged()
def of_new(config: SweepConfig) -> DryRun:
    """Look at a sweep that has not begun.

    Raises:
        ConfigError: as the sweep itself would on a user's mistake.
    """
    config = planner.absolute(config)
    address = store.resolve_uri(config.base.tracking_uri)  # a module of the user's may set another one
    trials = planner.planned(config)
    planner.refuse(config, trials)
    if config.search == "optuna":
        trials = planner.open_trials(config)
    planner.refuse_taken(config, address)
    return _of(config, trials)


@tracking.unchanged()
def of_begun(
    name: str,
    tracking_uri: str | None = None,
    retry_failed: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> DryRun:
    """Look at what is left of a sweep; arguments as of ``runner.resume``.

    Raises:
        ConfigError: as the sweep itself would on a user's mistake.
    """
    tracking.quieten(verbose=False)
    client, known = reading.open_sweep(store.resolve_uri(tracking_uri), name)
    config, trials = planner.read(known)
    config = dataclasses.replace(config, **limits or {})
    folder, earlier = storage.at(known.folder), {run.key: run for run in reading.trials(client, known)}
    for trial in trials:
        trial.find_again(folder, earlier, read_only=True)
        if retry_failed and trial.state == boards.FAILED:
            trial.state, trial.reason = boards.WAITING, ""
    if any(trial.state == boards.WAITING for trial in trials):
        Budget(config, trials, known.metrics.get("sweep/placed_s", 0.0)).refuse_reached(name)
    return _of(config, trials)


def _of(config: SweepConfig, trials: list[PlannedTrial]) -> DryRun:
    probes: list[PlannedTrial] = []
    if any(trial.is_open for trial in trials):
        proposals.check_installed()
        probes = planner.planned(config)
        planner.refuse(config, [*trials, *probes])
    waiting = [trial for trial in [*trials, *probes] if trial.state == boards.WAITING and trial.config]
    at_once, notes = None, []
    if waiting:
        base, room = config.base, preparation.room(waiting)
        if (head := connection.address(base)) is not None:
            notes.append(f"Whether the cluster at {head} has room for these topologies is not looked at.")
        else:
            ready = Preparation(base, Board([], 0.0), _nodes(base, room))
            ready.place(waiting)
            planner.refuse(config, [*trials, *probes])
            left = sum(trial.state == boards.WAITING for trial in trials)
            at_once = ready.at_once(config, storage.at(base.storage), waiting, left)
    if config.scheduler != "none":
        notes.append(f"--scheduler {config.scheduler} stops some earlier.")
    if config.repeat:
        notes.append(f"The best run is trained {config.repeat} more times (--repeat), which is not counted.")
    return DryRun(config.name, tuple(map(_row, trials)), at_once, tuple(notes))


def _nodes(base: TrainConfig, room: Decided) -> list[Node]:
    """The nodes that Ray would have if it were started here.

    Raises:
        ConfigError: when this machine has too few CPUs for them.
    """
    gpus = 0 if base.local_nodes > 1 else torch.cuda.device_count()
    return [Node(str(at), "here", local.cpus_per_node(base, room), gpus) for at in range(base.local_nodes)]


def _row(trial: PlannedTrial) -> DryRow:
    if trial.is_open:
        return DryRow(trial.cell.name, "", trial.state, "Optuna proposes its values as the sweep goes on")
    config = trial.config or trial.cell.config
    return DryRow(trial.cell.name, config.topology if config else "", trial.state, trial.reason)
