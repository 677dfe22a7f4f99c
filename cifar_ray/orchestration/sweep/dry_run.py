"""What a sweep would train, without Ray: its runs, and their time and cost where finished runs tell them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
from cifar_ray.orchestration.sweep import expected, planner, preparation, proposals
from cifar_ray.orchestration.sweep.limits import Budget
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.planning.span import Span
from cifar_ray.reporting import cost, report
from cifar_ray.tracking import parent, store
from cifar_ray.tracking.study import HARDWARE_TAG, Trial


@dataclass(frozen=True)
class DryRow:
    """One run of the sweep.

    Attributes:
        name: its name.
        topology: NODESxWORKERS; empty where its values are still to be proposed.
        state: ``waiting``, ``skipped``, or how an earlier driver has left it.
        reason: why it is skipped, or the time unknown; else empty.
        seconds: that it takes on its nodes yet, with their range; None where that is not known.
        usd: US dollars; None where these are not known, or there is no price.
    """

    name: str
    topology: str
    state: str
    reason: str = ""
    seconds: Span | None = None
    usd: Span | None = None


@dataclass(frozen=True)
class DryRun:
    """What a sweep would train.

    Attributes:
        name: of the sweep.
        rows: its runs.
        at_once: how many would train at a time; None where the cluster is not looked at.
        seconds: of all runs whose time is known, one after the other; None where none is.
        usd: of these.
        notes: what the figures rest on, in sentences.
    """

    name: str
    rows: tuple[DryRow, ...]
    at_once: int | None
    seconds: Span | None
    usd: Span | None
    notes: tuple[str, ...]


@tracking.unchanged()
def of_new(config: SweepConfig, names: Sequence[str] = ()) -> DryRun:
    """Look at a sweep that has not begun; ``names`` are of finished sweeps or runs, or files, that tell times.

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
    return _of(config, trials, _finished(names, address))


@tracking.unchanged()
def of_begun(
    name: str,
    tracking_uri: str | None = None,
    names: Sequence[str] = (),
    retry_failed: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> DryRun:
    """Look at what is left of a sweep, whose own finished runs tell times, too; arguments as of ``runner.resume``.

    Raises:
        ConfigError: as the sweep itself would on a user's mistake.
    """
    tracking.quieten(verbose=False)
    client, known = parent.connect(name, tracking_uri)
    config, trials = planner.read(known)
    config = dataclasses.replace(config, **limits or {})
    folder, earlier = storage.at(known.folder), parent.trials(client, known)
    for trial in trials:
        trial.find_again(folder, earlier, read_only=True)
        if retry_failed and trial.state == boards.FAILED:
            trial.state, trial.reason = boards.WAITING, ""
    if any(trial.state == boards.WAITING for trial in trials):
        Budget(config, trials, known.placed_s).refuse_reached(name)
    return _of(config, trials, _finished([name, *names], client.tracking_uri))


def _finished(names: Sequence[str], tracking_uri: str) -> list[Trial]:
    studies = report.read(list(dict.fromkeys(names)), tracking_uri)
    return [trial for study in studies for trial in study.trials if trial.finished]


def _of(config: SweepConfig, trials: list[PlannedTrial], finished: Sequence[Trial]) -> DryRun:
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
            ready.divide_cpus(waiting, at_once)
    price = cost.checked(config.base.price)
    rows: list[DryRow] = []
    hardware: set[str] = set()
    for trial in trials:
        row = _row(trial, finished)
        if row.seconds is not None and trial.config is not None:
            told = expected.telling(trial.config, trial.decided, finished)
            hardware |= {run.tags.get(HARDWARE_TAG) or "unknown hardware" for run in told}
            if price is not None:
                usd = row.seconds.times(price.paid_for(trial.config.placement.nodes))
                row = dataclasses.replace(row, usd=usd)
        rows.append(row)
    if any(row.seconds for row in rows):
        notes.append(
            f"Times are those of runs on {' and '.join(sorted(hardware))}, from when a run gets its CPUs; the start of "
            "Ray and waiting for CPUs are not included, and not known."
        )
        if config.scheduler != "none":
            notes.append(f"--scheduler {config.scheduler} stops some earlier.")
    if config.repeat:
        notes.append(f"The best run is trained {config.repeat} more times (--repeat), which is not counted.")
    return DryRun(
        config.name,
        tuple(rows),
        at_once,
        _sum([row.seconds for row in rows]),
        _sum([row.usd for row in rows]),
        tuple(notes),
    )


def _nodes(base: TrainConfig, room: Decided) -> list[Node]:
    """The nodes that Ray would have if it were started here.

    Raises:
        ConfigError: when this machine has too few CPUs for them.
    """
    gpus = 0 if base.local_nodes > 1 else torch.cuda.device_count()
    return [Node(str(at), "here", local.cpus_per_node(base, room), gpus) for at in range(base.local_nodes)]


def _row(trial: PlannedTrial, finished: Sequence[Trial]) -> DryRow:
    if trial.is_open:
        return DryRow(trial.cell.name, "", trial.state, "time unknown: Optuna proposes its values as the sweep goes on")
    if trial.config is None or trial.state != boards.WAITING:
        config = trial.config or trial.cell.config
        topology = config.topology if config else ""
        return DryRow(trial.cell.name, topology, trial.state, trial.reason)
    takes = expected.seconds(trial.config, trial.decided, finished)
    if isinstance(takes, str):
        return DryRow(trial.cell.name, trial.config.topology, trial.state, f"time unknown: {takes}")
    done = trial.spent.placed_s  # one that goes on has done a part of it
    left = Span(*(max(end - done, 0.0) for end in (takes.low, takes.mid, takes.high)))
    return DryRow(trial.cell.name, trial.config.topology, trial.state, seconds=left)


def _sum(spans: Sequence[Span | None]) -> Span | None:
    known = [span for span in spans if span is not None]
    return sum(known[1:], known[0]) if known else None
