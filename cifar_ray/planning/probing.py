"""A plan from short runs of the training: which runs they are, and what they tell."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.planning import measured, model, words
from cifar_ray.planning.exchange import AFTER, Exchange
from cifar_ray.planning.model import Means, Plan, Work
from cifar_ray.tracking.study import Run

if TYPE_CHECKING:  # imports torch
    from cifar_ray.training.probe import Gradients

STEPS = 40
"""Of each run, at least."""
_MOST = 4  # sizes for each number of workers on a node; between them lie straight lines
_IMAGES = 16  # of the passes in which the readiness of gradients is measured
# Options that no short run has: those of the strategy, those that it has its own of, and what may not fit one epoch.
_OF_TRAINING = ("strategy", "strategy_options", "bucket_cap_mb", "global_batch_size", "epochs", "warmup_epochs")


@dataclass(frozen=True)
class Machine:
    """What the short runs are trained on."""

    hardware: str  # in words
    device: str  # ``cpu`` or ``cuda``


def this_machine(config: ResolvedConfig) -> Machine:
    """What this machine offers to the runs of a training."""
    import torch

    from cifar_ray.training import hardware

    device = "cuda" if torch.cuda.is_available() and config.device != "cpu" else "cpu"
    return Machine(hardware.describe(torch.device(device)), device)


def sizes(images: Iterable[int]) -> list[int]:
    """At most four of these sizes: the smallest, the largest, and those nearest to equal ratios between the two."""
    known = sorted(set(images))
    if len(known) <= _MOST:
        return known
    steps = [known[0] * (known[-1] / known[0]) ** (at / (_MOST - 1)) for at in range(_MOST)]
    return sorted({min(known, key=lambda size: abs(math.log(size / step))) for step in steps})


def cells(
    config: ResolvedConfig, device: str, topologies: Sequence[Topology], images: int
) -> list[dict[str, list[Any]]]:
    """The runs that tell what a training takes on these topologies, each on one node, as grids of one cell.

    A worker with a GPU of its own is measured alone, since it computes the same beside any number of others.

    Args:
        config: the training.
        device: ``cpu`` or ``cuda``.
        topologies: what is planned.
        images: in the training set.

    Raises:
        ConfigError: when no topology can share the global batch.
    """
    shares: dict[int, list[int]] = defaultdict(list)
    for topology in topologies:
        images_each, rest = divmod(config.global_batch_size, topology.world_size * config.accumulate)
        if not rest:
            shares[1 if device == "cuda" else topology.workers_per_node].append(images_each)
    if not shares:
        problem = "must be a multiple of the workers of one topology at least"
        raise ConfigError("global_batch_size", f"{problem}, got {config.global_batch_size}")

    def cell(workers: int, size: int) -> dict[str, list[Any]]:
        whole = images // (size * workers * config.accumulate)
        made: dict[str, list[Any]] = {"topology": [f"1x{workers}"], "batch_size": [size]}
        made |= {"steps_per_epoch": [min(whole, STEPS)], "epochs": [math.ceil(STEPS / whole)]}
        return {**made, "strategy": [AFTER[0]]}

    return [cell(workers, size) for workers, wanted in sorted(shares.items()) for size in sizes(wanted)]


def sweep(name: str, train: Mapping[str, Any], grid: Sequence[Mapping[str, Any]]) -> SweepConfig:
    """These cells as a sweep that trains one after the other, and leaves out what this machine has no room for.

    Args:
        name: its name.
        train: options that all runs share, as text or values.
        grid: what :func:`cells` made.
    """
    shared = {key: value for key, value in train.items() if key not in _OF_TRAINING}
    values = {"name": name, "grid": grid, "train": shared, "measure": "times"}
    return sweeps.from_mapping({**values, "skip_infeasible": True, "max_concurrent": 1})


def plan(
    config: ResolvedConfig,
    trials: Sequence[Run],
    topologies: Sequence[Topology],
    means: Means,
    speed: float | None = None,
) -> Plan:
    """What a training takes on each topology, by short runs of it.

    Args:
        config: the training.
        trials: the runs.
        topologies: what is planned.
        means: the link, the host's work and the price of a node.
        speed: how many times as fast as the runs' the planned machines are.

    Raises:
        ConfigError: when the runs do not tell what is needed.
    """
    from cifar_ray.training import probe

    runs, notes = measured.of_trials(trials)
    runs = dataclasses.replace(runs, speed=speed or 1.0)
    precision, unit = trials[0].params.get("precision", "fp32"), trials[0].task.unit
    work = work_of(config, probe.readiness(config, precision, _IMAGES, config.cpus_per_worker or 1), runs.device)
    made = model.plan(runs, work, topologies, means)
    notes += words.notes(runs, work, means, made.rows, f"{config.model} on {config.dataset}", unit)
    return dataclasses.replace(made, unit=unit, notes=tuple(notes))


def work_of(config: ResolvedConfig, gradients: Gradients, device: str) -> Work:
    """What a training does in a step and in all, on ``cpu`` or ``cuda``."""
    from cifar_ray import data

    sent = Exchange.of(config, gradients, device)
    return Work(config.global_batch_size, config.accumulate, data.steps_per_epoch(config), config.epochs, sent)
