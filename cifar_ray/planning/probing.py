"""The short runs that a plan is made from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.planning.exchange import AFTER
from cifar_ray.reporting.cost import Price

STEPS = 40
"""Of each run, at least."""
_MOST = 4  # sizes for each number of workers on a node; between them lie straight lines
# Options that no short run has: those of the strategy, those that it has its own of, and what may not fit one epoch.
_OF_TRAINING = ("strategy", "strategy_options", "bucket_cap_mb", "global_batch_size", "epochs", "warmup_epochs")


@dataclass(frozen=True)
class Machine:
    """What the short runs are trained on."""

    hardware: str  # what it computes on, in words
    device: str  # ``cpu`` or ``cuda``
    # which its workers share; None where each worker's are given, or where a cluster gives them
    cpus: int | None = None
    room: int | None = None  # workers that it has room for; None where that is not known


def this_machine(config: ResolvedConfig) -> Machine:
    """What this machine offers to the runs of a training.

    Raises:
        ConfigError: when it has fewer CPUs than a worker is to have.
    """
    import torch

    from cifar_ray.training import hardware

    device = "cuda" if torch.cuda.is_available() and config.device != "cpu" else "cpu"
    cpus, each = hardware.allowed_cpus(), config.cpus_per_worker
    if (each or 1) > cpus:
        raise ConfigError("cpus_per_worker", f"must be at most {cpus}, the CPUs of this machine, got {each}")
    room = torch.cuda.device_count() if "cuda" in (device, config.device) else cpus // (each or 1)
    return Machine(hardware.describe(torch.device(device)), device, cpus if each is None else None, room)


def sizes(images: Iterable[int]) -> list[int]:
    """At most four of these sizes: the smallest, the largest, and those nearest to equal ratios between the two."""
    known = sorted(set(images))
    if len(known) <= _MOST:
        return known
    steps = [known[0] * (known[-1] / known[0]) ** (at / (_MOST - 1)) for at in range(_MOST)]
    return sorted({min(known, key=lambda size: abs(math.log(size / step))) for step in steps})


def check_price(price: Price | None, speed: float | None, on: Machine) -> None:
    """Refuse the price of another machine than that of the runs when nobody says how fast it is."""
    if speed is not None or price is None or not price.machine:
        return
    name = next((word for word in price.gpu.split(" ") if not word.isdecimal()), "")
    if on.device != "cuda" or not name or name not in on.hardware.replace("-", " ").split(" "):
        problem = f"must come with --speed-factor, how many times as fast as {on.hardware} it is"
        raise ConfigError("price", f"{problem}; the runs do not tell it of {price.machine}")


def cells(
    config: ResolvedConfig, on: Machine, topologies: Sequence[Topology], images: int
) -> list[dict[str, list[Any]]]:
    """The runs that tell what a training takes on these topologies, each on one node, as grids of one cell.

    A worker that computes the same beside any number of others is measured alone where there is no room for these.

    Args:
        config: the training.
        on: what its runs are trained on.
        topologies: what is planned.
        images: in the training set.

    Raises:
        ConfigError: when no topology can share the global batch.
    """
    is_alike = on.device == "cuda" or on.cpus is None
    most = math.inf if on.room is None or not is_alike else on.room
    shares: dict[int, list[int]] = defaultdict(list)
    for topology in topologies:
        images_each, rest = divmod(config.global_batch_size, topology.world_size * config.accumulate)
        if not rest:
            shares[topology.workers_per_node if topology.workers_per_node <= most else 1].append(images_each)
    if not shares:
        problem = "must be a multiple of the workers of one topology at least"
        raise ConfigError("global_batch_size", f"{problem}, got {config.global_batch_size}")

    def cell(workers: int, size: int) -> dict[str, list[Any]]:
        whole = images // (size * workers * config.accumulate)
        made: dict[str, list[Any]] = {"topology": [f"1x{workers}"], "batch_size": [size]}
        made |= {"steps_per_epoch": [min(whole, STEPS)], "epochs": [math.ceil(STEPS / whole)]}
        if on.cpus is not None:
            made["cpus_per_worker"] = [max(on.cpus // workers, 1)]
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
