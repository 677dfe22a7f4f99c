"""What a sweep would train, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cifar_ray import tracking
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Node
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.cluster import connection, local
from cifar_ray.orchestration.sweep import driver, plan, preparation
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.tracking import reading
from cifar_ray.tracking.uri import resolve_uri


@dataclass(frozen=True)
class DryRun:
    """What a sweep would train.

    Attributes:
        rows: of each run its ``name``, ``state``, and the ``reason`` for it.
        at_once: how many runs at a time; None where the cluster is not looked at.
        notes: what else a person should know.
    """

    name: str
    rows: tuple[Mapping[str, str], ...]
    at_once: int | None
    notes: tuple[str, ...]


@tracking.unchanged()
def of_new(config: SweepConfig) -> DryRun:
    """Look at a sweep that has not begun; what is wrong with its options or topologies is a ConfigError."""
    return _of(*driver.planned(config))


@tracking.unchanged()
def of_begun(
    name: str, tracking_uri: str | None = None, retry_failed: bool = False, limits: Mapping[str, Any] | None = None
) -> DryRun:
    """Look at what is left of a sweep; arguments and errors as of ``driver.resume``."""
    tracking.quieten(verbose=False)
    client, known = reading.open_sweep(resolve_uri(tracking_uri), name)
    config, cells = plan.read(known, limits)
    plan.find_again(client, known, cells, retry_failed)
    if any(cell.state == boards.WAITING for cell in cells):
        Budget(config, cells, known.metrics.get("sweep/placed_s", 0.0)).refuse_reached(name)
    return _of(config, cells, plan.probes(config, cells))


def _of(config: SweepConfig, cells: list[PlannedCell], probes: list[PlannedCell]) -> DryRun:
    waiting, at_once, notes = [cell for cell in (*cells, *probes) if cell.is_waiting], None, []
    head = connection.address(config.base)
    if waiting and head is not None:
        notes.append(f"Whether the cluster at {head} has room for these topologies is not looked at.")
    elif waiting:
        cpus, count = local.cpus_per_node(config.base, preparation.room(waiting)), config.base.local_nodes
        gpus = 0 if count > 1 else torch.cuda.device_count()
        nodes = [Node(str(at), "here", cpus, gpus) for at in range(count)]  # as Ray would have them
        ready = Preparation(config.base, Board([], 0.0), nodes=nodes)
        ready.place(waiting)
        plan.refuse(config, [*cells, *probes])
        left = sum(cell.state == boards.WAITING for cell in cells)
        at_once = ready.at_once(waiting, min(left, config.max_concurrent or left))
    if config.scheduler != "none":
        notes.append(f"--scheduler {config.scheduler} stops some earlier.")
    if any(cell.is_open for cell in cells):
        notes.append("Optuna proposes the values as the sweep goes on.")
    if config.repeat:
        notes.append(f"The best run is trained {config.repeat} more times (--repeat), which is not counted.")
    rows = [{"name": cell.cell.name, "state": cell.state, "reason": cell.row.shown.note} for cell in cells]
    return DryRun(config.name, tuple(rows), at_once, tuple(notes))
