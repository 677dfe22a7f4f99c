"""``cifar-ray plan``: what a training would take, from short runs or finished ones, a link and a price."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cifar_ray.cli import early, output, probe
from cifar_ray.config import command_line, errors, limits, runfile, schema
from cifar_ray.config.command_line import PlanRequest
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.plan_command import PlanOptions
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.display.run import Console
from cifar_ray.planning import exchange, measured, model
from cifar_ray.planning import link as links
from cifar_ray.planning import words as words_of
from cifar_ray.planning.exchange import Exchange, Gradients
from cifar_ray.planning.link import Link
from cifar_ray.planning.measured import Measured
from cifar_ray.planning.model import Means, Plan, Work
from cifar_ray.reporting import cost
from cifar_ray.reporting.cost import Price
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.study import Study, Trial

if TYPE_CHECKING:  # imports torch
    from cifar_ray.training.probe import Readiness

_IMAGES = 16  # of the passes in which the readiness of gradients is measured


@dataclass(frozen=True)
class Planned:
    """The result of the command.

    Attributes:
        plan: the rows, and what is best.
        notes: what the figures rest on, in sentences.
    """

    plan: Plan
    notes: tuple[str, ...]


def show(words: Sequence[str]) -> int:
    """``cifar-ray plan``."""
    asked = command_line.plan(words)
    command = asked.options
    price = cost.checked(command.price)
    link, host = _link("link", command.link), _link("host", command.host)
    if command.budget is not None and price is None:
        raise ConfigError("budget", "needs --price, the price of a node, such as 2.49 USD per hour")
    if asked.training is not None and link is None and max(command.nodes) > 1:
        raise ConfigError("link", "must be given for --nodes of more than 1, such as --link 10gbit")
    topologies = [Topology(nodes, workers) for nodes in command.nodes for workers in command.workers]
    in_store = early.check_studies(command.from_, command.tracking_uri)
    with output.progress(command.json):
        trained = None
        if asked.training is not None:
            refuse = partial(_refuse, price=price, speed=command.speed_factor)
            is_other = price is not None and price.machine != "" and command.speed_factor is None
            trained = probe.run(asked, asked.training, topologies, words, refuse, is_other)
        with early.loading("loading PyTorch" + " and MLflow" * bool(in_store)):
            from cifar_ray.reporting import exported, report
            from cifar_ray.training import probe as passes

            read = (command.from_, command.tracking_uri) if trained is None else ((trained.name,), trained.tracking_uri)
            study = exported.together(report.read(*read), "global_batch")
            runs, trial, notes = usable(study, command.model, trained.name if trained else "")
            runs = _on(runs, price, command.speed_factor)
            precision = trial.params.get("precision", "fp32")
            if trained is None:
                config = training(trial, command.strategy, command.epochs, command.global_batch_size, asked.train)
            else:
                config = trained.training
            readiness = passes.readiness(config, precision, _IMAGES, config.cpus_per_worker or 1)
    work = work_of(config, readiness, runs.device, trial)
    host = host or model.host(runs, work)
    has_gpus = price is not None and price.gpu != ""
    means = Means(
        link=link,
        host=host,
        usd_per_hour=price.usd_per_hour if price else None,
        gpus=price.gpus if price and has_gpus else None,
        memory_mib=price.gpu_memory_mib if price else None,
        deadline_s=limits.seconds(command.deadline) if command.deadline else None,
        budget_usd=command.budget,
    )
    plan = model.plan(runs, work, topologies, means)
    title, unit = f"{config.model} on {config.dataset}", trial.task.unit
    notes += words_of.notes(runs, work, means, plan.rows, price.words if price else "", title, unit)
    if "steps_per_epoch" in trial.params:
        notes.append(f"An epoch is whole here, {work.steps:,} steps; the runs' were {trial.params['steps_per_epoch']}.")
    if trained is not None:
        notes.append(f"The runs are sweep {trained.name}; `{again(asked, trained)}` plans from them again.")
    planned = Planned(plan, tuple(notes))
    output.show(planned, command.json, lambda: words_of.show(plan, means, notes, Console(), unit))
    return 0 if plan.fastest else 1  # none is possible, or keeps to the limits


def usable(study: Study, model: str | None, sweep: str) -> tuple[Measured, Trial, list[str]]:
    """As :func:`cifar_ray.planning.measured.of_study`, of finished runs or of the ``sweep`` that a plan has trained.

    Raises:
        ConfigError: when finished runs that were named tell nothing.
        CommandFailedError: when those of the sweep do.
    """
    try:
        return measured.of_study(study, model)
    except ConfigError as error:
        if not sweep or error.key != "from_":
            raise
        raise CommandFailedError(f"sweep {sweep} must have {error.problem.removeprefix('must name ')}") from None


def again(asked: PlanRequest, trained: probe.Probe) -> str:
    """The command that plans the same from the runs that have been trained."""
    config, usual = trained.training, PlanOptions()
    given: dict[str, Any] = {name: getattr(config, name) for name in ("strategy", "global_batch_size", "epochs")}
    sent = {name: value for name, value in asked.train.items() if name in command_line.OF_EXCHANGE}
    given |= schema.flatten(sent)
    for field in dataclasses.fields(usual):
        value = getattr(asked.options, field.name)
        if field.name not in (*given, "name", "tracking_uri") and value != getattr(usual, field.name):
            given[field.name] = value
    words = ["cifar-ray", "plan", "--from", trained.name]
    for name, value in given.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [errors.flag_of(name)] + [text] * (value is not True)
    return shlex.join(words) + stores.flag(trained.tracking_uri)


def _refuse(planned: ResolvedConfig, here: Measured | None, price: Price | None, speed: float | None) -> None:
    """Refuse what cannot be planned, before anything is trained on the machine ``here``; None where it is not known.

    Raises:
        ConfigError: naming the option.
    """
    if has := exchange.unknown(planned):
        raise ConfigError("", f"{has} cannot be planned: what is exchanged with it is not in the model")
    if here is not None:
        _on(here, price, speed)


def _link(key: str, text: str | None) -> Link | None:
    try:
        return None if text is None else links.parse(text)
    except ValueError as error:
        raise ConfigError(key, str(error)) from None


def _on(runs: Measured, price: Price | None, speed: float | None) -> Measured:
    """What was measured, on the machine of a price.

    Raises:
        ConfigError: when nobody says how fast that machine is.
    """
    if speed is not None:
        return measured.faster(runs, speed)
    if price is not None and price.machine:
        name = next((word for word in price.gpu.split(" ") if not word.isdecimal()), "")
        if runs.device != "cuda" or not name or name not in runs.hardware.replace("-", " ").split(" "):
            problem = f"must come with --speed-factor, how many times as fast as {runs.hardware or 'in the runs'} it is"
            raise ConfigError("price", f"{problem}; the runs do not tell it of {price.machine}")
    return runs


def training(
    trial: Trial,
    strategy: str | None = None,
    epochs: int | None = None,
    global_batch_size: int | None = None,
    sent: Mapping[str, Any] | None = None,
) -> ResolvedConfig:
    """The training to plan: that of a run, with whole epochs and what else is given.

    Args:
        trial: the run.
        strategy: None for the run's.
        epochs: likewise.
        global_batch_size: likewise.
        sent: options of the strategy beside the run's.

    Raises:
        ConfigError: when it cannot be planned.
    """
    from cifar_ray.training import recipe

    words = shlex.split(trial.tags.get("cifar_ray.command", ""))[2:]
    if not words:
        raise ConfigError("from_", f"must name runs whose command is recorded, and that of {trial.name} is not")
    asked = command_line.train(words).config
    strategy, images = strategy or trial.strategy, global_batch_size or trial.global_batch_size
    changes: dict[str, Any] = {
        "strategy": strategy,
        "strategy_options": asked.strategy_options if strategy == asked.strategy else {},
        "bucket_cap_mb": asked.bucket_cap_mb if strategy == "ddp" else TrainConfig.bucket_cap_mb,
        "epochs": epochs or asked.epochs,
        "global_batch_size": images,
        "batch_size": None,
        "topology": "1x1",
        "steps_per_epoch": None,
        "precision": trial.params.get("precision", asked.precision),
    }
    values = runfile.merge({**schema.to_plain(asked), **changes}, sent or {})
    config = recipe.resolve(runfile.from_mapping(values))
    if (config.model, config.dataset) != (trial.model, trial.dataset):
        is_of, tells = f"{trial.model} on {trial.dataset}", f"{config.model} on {config.dataset}"
        raise ConfigError("from_", f"must name runs whose command tells them, and {trial.name}, {is_of}, has {tells}")
    if has := exchange.unknown(config):
        raise ConfigError("from_", f"must name runs without {has}, and {trial.name} has it")
    return config


def work_of(config: ResolvedConfig, readiness: Readiness, device: str, trial: Trial) -> Work:
    """What a training does in a step and in all; ``trial`` is a run that was measured, and ``device`` its device."""
    from cifar_ray import data

    sent = Exchange.of(config, Gradients(readiness.sizes, readiness.ready), readiness.buffer_bytes, device)
    test_images = int(trial.params.get("test_images", "0") or 0)
    evaluated = data.spec(config).test_size / test_images if test_images and not config.validated else 1.0
    return Work(
        config.global_batch_size,
        config.accumulate,
        data.steps_per_epoch(config),
        config.epochs,
        sent,
        evaluated,
        measured.sent(runfile.params(config, Decided.asked(config))),
    )
