"""A plan from the short runs that were trained for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.planning import measured, model, words
from cifar_ray.planning.exchange import Exchange, Gradients
from cifar_ray.planning.model import Means, Plan, Work
from cifar_ray.reporting.cost import Price
from cifar_ray.tracking.study import Trial

if TYPE_CHECKING:  # imports torch
    from cifar_ray.training.probe import Readiness

_IMAGES = 16  # of the passes in which the readiness of gradients is measured


def plan(
    config: ResolvedConfig,
    trials: Sequence[Trial],
    topologies: Sequence[Topology],
    means: Means,
    price: Price | None = None,
    speed: float | None = None,
) -> Plan:
    """What a training takes on each topology, by short runs of it.

    Args:
        config: the training.
        trials: the runs.
        topologies: what is planned.
        means: the link and the host's work.
        price: of a node.
        speed: how many times as fast as the runs' the machine of that price is.

    Raises:
        ConfigError: when the runs do not tell what is needed.
    """
    from cifar_ray.training import probe

    runs, notes = measured.of_trials(trials)
    runs = dataclasses.replace(runs, speed=speed or 1.0)
    precision, unit = trials[0].params.get("precision", "fp32"), trials[0].task.unit
    work = work_of(config, probe.readiness(config, precision, _IMAGES, config.cpus_per_worker or 1), runs.device)
    if price is not None:
        gpus = price.gpus if price.gpu else None
        means = dataclasses.replace(means, usd_per_hour=price.usd_per_hour, gpus=gpus)
    made = model.plan(runs, work, topologies, means)
    notes += words.notes(runs, work, means, made.rows, f"{config.model} on {config.dataset}", unit)
    if price is not None:
        notes.append(f"Cost: every node for the whole run, {price.words}.")
    return dataclasses.replace(made, unit=unit, notes=tuple(notes))


def work_of(config: ResolvedConfig, readiness: Readiness, device: str) -> Work:
    """What a training does in a step and in all, on ``cpu`` or ``cuda``."""
    from cifar_ray import data

    sent = Exchange.of(config, Gradients(readiness.sizes, readiness.ready), readiness.buffer_bytes, device)
    return Work(config.global_batch_size, config.accumulate, data.steps_per_epoch(config), config.epochs, sent)
