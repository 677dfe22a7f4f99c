"""How a run or a sweep is asked for on the command line, here or through a job."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cifar_ray import __version__
from cifar_ray.config import addresses, flags, runfile, schema, sweepfile
from cifar_ray.config.commands import ResumeCommand, SweepCommand, TrainCommand
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.plan_command import PlanCommand, PlanOptions
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig

_NOT_PROBED = {
    **dict.fromkeys(("topology", "elastic"), "give --nodes and --workers"),
    "batch_size": "give --global-batch-size",
    "steps_per_epoch": "it plans whole epochs",
    "run_name": "give --name",
    **dict.fromkeys(("max_time", "max_cost"), "give --deadline and --budget"),
    **dict.fromkeys(("oversubscribe", "local_nodes"), "nodes and CPUs that do not exist tell no times"),
}  # option of a run -> what to do instead to plan one
OF_EXCHANGE = ("bucket_cap_mb", "strategy_options")
"""Options of a strategy that change no run which a plan is made from, but what is planned."""

_NEW_LIMITS = ("max_time", "max_cost")  # options that a sweep may have anew when it goes on

SUBMITTED_WITH = "CIFAR_RAY_SUBMITTED_WITH"
"""Variable that tells the command of a job which cifar_ray has read and submitted it."""

SUBMITTED_BY = "CIFAR_RAY_SUBMITTED_BY"
"""Variable with the name of the person who submitted a job: the user of its runs."""


@dataclass(frozen=True)
class TrainRequest:
    """What ``cifar-ray train`` is asked for: a run, and how its result is printed."""

    config: TrainConfig
    json: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class SweepRequest:
    """What ``cifar-ray sweep`` is asked for.

    Attributes:
        config: a new sweep; None when one is to be continued.
        name: of the sweep.
        file: its YAML file, if it has one.
        tracking_uri: the store that has a sweep to be continued.
        is_named: whether the name was given, and not made from the time.
        quiet: whether its result alone is printed.
        retry_failed: whether the failed runs of a sweep that is continued go on, too.
        limits: the new ``max_time`` and ``max_cost`` of such a sweep.
        dry_run: whether it is only to be shown.
        plan_from: names or files of finished runs that tell times, when it is only to be shown.
        json: whether that is printed as JSON.
    """

    config: SweepConfig | None
    name: str
    file: str | None = None
    tracking_uri: str | None = None
    is_named: bool = True
    quiet: bool = False
    retry_failed: bool = False
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dry_run: bool = False
    plan_from: tuple[str, ...] = ()
    json: bool = False


@dataclass(frozen=True)
class PlanRequest:
    """What ``cifar-ray plan`` is asked for.

    Attributes:
        options: what to plan, and for which machines.
        train: options of the runs that are to be trained here, by field; where finished runs are given, those of the
            planned strategy.
        training: what is planned, where it is trained here; None where finished runs are given.
    """

    options: PlanOptions
    train: Mapping[str, Any]
    training: TrainConfig | None


def greet() -> None:
    """In a job, say who is there, which tells whoever submitted it that it has begun.

    Raises:
        ConfigError: when another version of the program has read the words.
    """
    theirs = os.environ.get(SUBMITTED_WITH)
    if theirs is None:
        return
    if theirs != __version__:
        raise ConfigError(
            "", f"the cluster has cifar_ray {__version__}, and the job was submitted with {theirs}; install the same"
        )
    print(greeting(socket.gethostname()), flush=True)


def greeting(host: str = "") -> str:
    """The line by which a job begins, or its beginning."""
    return f"cifar_ray {__version__} on {host}"


def train(words: Sequence[str]) -> TrainRequest:
    """The run that ``cifar-ray train`` is asked for.

    Raises:
        ConfigError: on an option or a value that there is not.
    """
    file, rest = config_file(words)
    values = flags.parse(TrainCommand, rest, "cifar-ray train")
    as_json, quiet = values.pop("json", False), values.pop("quiet", False)
    return TrainRequest(runfile.load(file, values), as_json, quiet)


def config_file(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file named by ``--config``, and the words without it.

    Raises:
        ConfigError: when there are two, or none follows.
    """
    parser = flags.Parser(prog="cifar-ray train", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[])
    known, rest = parser.parse_known_args(words)
    if len(known.config) > 1:
        raise ConfigError("config", "may be given once")
    return (known.config[0] if known.config else None), rest


def resume(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The run that ``cifar-ray resume`` is asked for, and what is to be different.

    Raises:
        ConfigError: on an option or a value that there is not.
    """
    command = flags.read(ResumeCommand, words, "resume")
    changes = {name: value for name, value in dataclasses.asdict(command).items() if value is not None}
    return changes.pop("run"), changes


def sweep(words: Sequence[str]) -> SweepRequest:
    """The sweep that ``cifar-ray sweep`` is asked for.

    Raises:
        ConfigError: on an option or a value that there is not.
    """
    options = flags.parse(SweepCommand, words, "cifar-ray sweep")
    file, again = options.pop("file", None), options.pop("retry_failed", False)
    dry = ("dry_run", "plan_from", "json")
    shown: dict[str, Any] = {key: options.pop(key) for key in dry if key in options}
    if "dry_run" not in shown and (key := next(iter(shown), "")):
        raise ConfigError(key, "is for --dry-run, which shows the sweep and trains nothing")
    shown |= {"quiet": options.pop("quiet", False), "plan_from": tuple(shown.get("plan_from", ()))}
    if "resume" in options:
        known = ("resume", "tracking_uri", *_NEW_LIMITS)
        other = next((key for key in schema.flatten(options) if key not in known), None)
        if file or other:
            raise ConfigError("resume", f"goes on as the sweep was begun, and takes no {other or 'file'} beside it")
        addresses.check("tracking_uri", options.get("tracking_uri"))
        new = {key: schema.field(SweepConfig, key, options[key]) for key in _NEW_LIMITS if key in options}
        uri = options.get("tracking_uri")
        return SweepRequest(None, options["resume"], None, uri, retry_failed=again, limits=new, **shown)
    if again:
        raise ConfigError("retry_failed", "needs --resume NAME, the sweep whose failed runs are to go on")
    base = sweepfile.load(file) if file else {}
    try:
        values = sweepfile.merge(base, options, file)
        config = sweepfile.from_mapping(values)
    except ConfigError as error:
        if file is not None and (error.key == "train" or (error.key == "grid" and "grid" not in options)):
            raise ConfigError("", f"{file}: `{error.key}:` {error.problem}") from None
        raise
    return SweepRequest(config, config.name, file, is_named="name" in values, **shown)


def plan(words: Sequence[str]) -> PlanRequest:
    """The plan that ``cifar-ray plan`` is asked for.

    Raises:
        ConfigError: on an option or a value that there is not, or on options that do not go together.
    """
    values = flags.parse(PlanCommand, words, "cifar-ray plan")
    own = {field.name for field in dataclasses.fields(PlanOptions)}
    options: PlanOptions = schema.build(PlanOptions, {name: value for name, value in values.items() if name in own})
    train = {name: value for name, value in values.items() if name not in own}
    if options.from_:
        of_runs = {name: value for name, value in train.items() if name not in OF_EXCHANGE}
        if other := next(iter([*schema.flatten(of_runs), *(["name"] if options.name else [])]), None):
            problem = "is for runs that are trained here, and --from names others; leave out one of the two"
            raise ConfigError(other, problem)
        return PlanRequest(options, train, None)
    if unfit := next((name for name in train if name in _NOT_PROBED), None):
        raise ConfigError(unfit, f"is not for cifar-ray plan: {_NOT_PROBED[unfit]}")
    shared = {name: value for name in ("model", "tracking_uri") if (value := getattr(options, name)) is not None}
    asked = {name: getattr(options, name) for name in ("strategy", "global_batch_size", "epochs")}
    given = {name: value for name, value in asked.items() if value is not None}
    return PlanRequest(options, {**train, **shared}, runfile.load(None, {**train, **shared, **given}))
