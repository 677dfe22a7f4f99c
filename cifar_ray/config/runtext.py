"""How a run or a sweep is asked for on the command line, here or through a job."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cifar_ray import __version__
from cifar_ray.config import flags, strict, sweeptext
from cifar_ray.config import train as configs
from cifar_ray.config.commands import ResumeCommand, SweepCommand, TrainCommand
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig

SUBMITTED_WITH = "CIFAR_RAY_SUBMITTED_WITH"
"""Variable that tells the command of a job which cifar_ray has read and submitted it."""


@dataclass(frozen=True)
class SweepRequest:
    """What ``cifar-ray sweep`` is asked for.

    Attributes:
        config: a new sweep; None when one is to be continued.
        name: of the sweep.
        file: its YAML file, if it has one.
        tracking_uri: the store that has it, when it is to be continued.
    """

    config: SweepConfig | None
    name: str
    file: str | None = None
    tracking_uri: str | None = None


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


def train(words: Sequence[str]) -> TrainConfig:
    """The run that ``cifar-ray train`` is asked for.

    Raises:
        ConfigError: on an option or a value that there is not.
    """
    file, given = config_file(words)
    base = configs.load(file) if file else TrainConfig()
    return _as_config(flags.read(TrainCommand, given, _as_command(_give_way(base, given), file), "train"))


def resume(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The run that ``cifar-ray resume`` is asked for, and what is to be different.

    Raises:
        ConfigError: on an option or a value that there is not.
    """
    command = flags.read(ResumeCommand, words, None, "resume")
    given = dataclasses.asdict(command).items()
    changes = {name: value for name, value in given if value is not None and (name, value) != ("oversubscribe", False)}
    return changes.pop("run"), changes


def sweep(words: Sequence[str]) -> SweepRequest:
    """The sweep that ``cifar-ray sweep`` is asked for.

    Raises:
        ConfigError: on an option or a value that there is not.
    """
    if {"-h", "--help"} & set(words):
        flags.read(SweepCommand, ["--help"], None, "sweep")
    file, given = sweep_words(words)
    if "resume" in given:
        alone = ("resume", "tracking_uri")
        other = next((key for key in strict.flatten(given) if key not in alone), None)
        if file or other:
            raise ConfigError("resume", f"goes on as the sweep was begun, and takes no {other or 'file'} beside it")
        configs.check_address("tracking_uri", given.get("tracking_uri"))
        return SweepRequest(None, given["resume"], tracking_uri=given.get("tracking_uri"))
    config = sweeptext.from_mapping(sweeptext.merge(sweeptext.load(file) if file else {}, given, file))
    return SweepRequest(config, config.name, file)


def config_file(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file named by ``--config``, and the words without it.

    Raises:
        ConfigError: when there are two, or none follows.
    """
    file: str | None = None
    rest: list[str] = []
    position = 0
    while position < len(words):
        flag, equals, inline = words[position].partition("=")
        position += 1
        if flag != "--config":
            rest.append(words[position - 1])
            continue
        if file is not None:
            raise ConfigError("config", "may be given once")
        if not equals and position == len(words):
            raise ConfigError("config", "must be followed by a YAML file")
        file = inline if equals else words[position]
        position += not equals
    return file, rest


def sweep_words(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The file that a sweep is named by, and its options; ``--grid`` takes everything up to the next option."""
    file = words[0] if words and not words[0].startswith("-") else None
    return file, strict.parse_flags(SweepCommand, words[1:] if file else words)


def _give_way(base: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """A batch size given as a flag replaces the file's, in whichever of the two ways that is given."""
    named = {word.split("=")[0] for word in words}
    if named & {"--batch-size", "--batch_size"}:
        return dataclasses.replace(base, global_batch_size=None)
    if named & {"--global-batch-size", "--global_batch_size"}:
        return dataclasses.replace(base, batch_size=None)
    return base


def _as_command(config: TrainConfig, file: str | None) -> TrainCommand:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    return TrainCommand(**values, config=file)


def _as_config(command: TrainCommand) -> TrainConfig:
    return TrainConfig(**{field.name: getattr(command, field.name) for field in dataclasses.fields(TrainConfig)})
