"""A plan from runs that have been trained."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cifar_ray.config import command_line, flags, runfile, schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.planning import exchange, measured, model, words
from cifar_ray.planning.exchange import Exchange, Gradients
from cifar_ray.planning.model import Means, Plan, Work
from cifar_ray.reporting.cost import Price
from cifar_ray.tracking.study import Run, Sweep

if TYPE_CHECKING:  # imports torch
    from cifar_ray.training.probe import Readiness

_IMAGES = 16  # of the passes in which the readiness of gradients is measured


@dataclass(frozen=True)
class Planned:
    """A plan.

    Attributes:
        plan: the rows, and what is best.
        means: what it is for.
        unit: what the task calls its samples.
        notes: what the figures rest on, in sentences.
    """

    plan: Plan
    means: Means
    unit: str
    notes: tuple[str, ...]


def plan(
    study: Sweep,
    topologies: Sequence[Topology],
    means: Means,
    price: Price | None = None,
    speed: float | None = None,
    given: Mapping[str, Any] | None = None,
    planned: ResolvedConfig | None = None,
) -> Planned:
    """What a training takes on each topology.

    Args:
        study: the runs.
        topologies: what is planned.
        means: the link, the host's work, and the limits.
        price: of a node.
        speed: how many times as fast as the runs' the machine of that price is.
        given: what differs from the first run: its strategy with that one's options, global batch and epochs.
        planned: the training, where the runs were trained for this plan; else it is that of the first run.

    Raises:
        ConfigError: when the runs do not tell what is needed, or what is given does not fit them.
    """
    from cifar_ray.training import probe

    given = given or {}
    runs, trial, notes = measured.of_study(study, given.get("model"))
    check_price(price, speed, runs.hardware, runs.device)
    runs = runs if speed is None else dataclasses.replace(runs, speed=speed)
    config = training(trial, given) if planned is None else planned
    precision = trial.params.get("precision", "fp32")
    readiness = probe.readiness(config, precision, _IMAGES, config.cpus_per_worker or 1)
    work = work_of(config, readiness, runs.device, trial)
    has_gpus = price is not None and price.gpu != ""
    means = dataclasses.replace(
        means,
        usd_per_hour=price.usd_per_hour if price else None,
        gpus=price.gpus if price and has_gpus else None,
    )
    made = model.plan(runs, work, topologies, means)
    title, unit = f"{config.model} on {config.dataset}", trial.task.unit
    notes += words.notes(runs, work, means, made.rows, price.words if price else "", title, unit)
    if "steps_per_epoch" in trial.params:
        notes.append(f"An epoch is whole here, {work.steps:,} steps; the runs' were {trial.params['steps_per_epoch']}.")
    return Planned(made, means, unit, tuple(notes))


def check_price(price: Price | None, speed: float | None, hardware: str, device: str) -> None:
    """Refuse the price of another machine than that of the runs when nobody says how fast it is.

    Raises:
        ConfigError: naming the option.
    """
    if speed is not None or price is None or not price.machine:
        return
    name = next((word for word in price.gpu.split(" ") if not word.isdecimal()), "")
    if device != "cuda" or not name or name not in hardware.replace("-", " ").split(" "):
        problem = f"must come with --speed-factor, how many times as fast as {hardware or 'in the runs'} it is"
        raise ConfigError("price", f"{problem}; the runs do not tell it of {price.machine}")


def training(trial: Run, given: Mapping[str, Any] | None = None) -> ResolvedConfig:
    """The training of a run with whole epochs, and with what is ``given``, as text or values.

    Raises:
        ConfigError: when it cannot be planned.
    """
    from cifar_ray.training import recipe

    given = given or {}
    command = shlex.split(trial.tags.get("cifar_ray.command", ""))[2:]
    if not command:
        raise ConfigError("from_", f"must name runs whose command is recorded, and that of {trial.name} is not")
    asked: TrainConfig = flags.call(command_line.train, command, "train")
    strategy = given.get("strategy", trial.strategy)
    changes: dict[str, Any] = {
        "strategy": strategy,
        "strategy_options": asked.strategy_options if strategy == asked.strategy else {},
        "bucket_cap_mb": asked.bucket_cap_mb if strategy == "ddp" else TrainConfig.bucket_cap_mb,
        "global_batch_size": trial.global_batch_size,
        "batch_size": None,
        "topology": "1x1",
        "steps_per_epoch": None,
        "precision": trial.params.get("precision", asked.precision),
    }
    values = runfile.merge({**schema.to_plain(asked), **changes}, given)
    config = recipe.resolve(runfile.from_mapping(values))
    if (config.model, config.dataset) != (trial.model, trial.dataset):
        is_of, tells = f"{trial.model} on {trial.dataset}", f"{config.model} on {config.dataset}"
        raise ConfigError("from_", f"must name runs whose command tells them, and {trial.name}, {is_of}, has {tells}")
    if has := exchange.unknown(config):
        raise ConfigError("from_", f"must name runs without {has}, and {trial.name} has it")
    return config


def work_of(config: ResolvedConfig, readiness: Readiness, device: str, trial: Run) -> Work:
    """What a training does in a step and in all; ``trial`` is a run that was measured, and ``device`` its device."""
    from cifar_ray import data

    sent = Exchange.of(config, Gradients(readiness.sizes, readiness.ready), readiness.buffer_bytes, device)
    test_images = int(trial.params.get("test_images", "0") or 0)
    facts = data.facts(config)
    evaluated = facts.test_size / test_images if test_images and not facts.val_size else 1.0
    return Work(
        config.global_batch_size,
        config.accumulate,
        data.steps_per_epoch(config),
        config.epochs,
        sent,
        evaluated,
    )
