"""What the words of `cifar-ray train` and `cifar-ray sweep` ask for."""

from __future__ import annotations

from collections.abc import Callable

from cifar_ray.cli import train as commands
from cifar_ray.config import command_line, flags, runfile
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig

Said = Callable[..., tuple[str, str]]
"""The fixture ``said`` of the tests of the command: what it prints to standard output and to standard error."""


def run(*words: str) -> TrainConfig:
    given = flags.read(commands.train, words, "train")
    return runfile.load(given.get("config"), given["options"])


def sweep(*words: str) -> SweepConfig:
    given = flags.read(commands.sweep, words, "sweep")
    return command_line.sweep(given.get("file"), given["options"])
