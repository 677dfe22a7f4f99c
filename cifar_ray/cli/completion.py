"""The script by which a shell completes the words of ``cifar-ray``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import shtab

from cifar_ray.cli.cluster import Commands
from cifar_ray.config import flags


def script(shell: str, commands: Commands) -> str:
    """The script for ``bash`` or ``zsh``: commands, flags and the values that a flag may have; else names of files."""
    parser = argparse.ArgumentParser("cifar-ray")
    _add(parser, commands)
    return shtab.complete(parser, shell)


def _add(parser: argparse.ArgumentParser, commands: Commands) -> None:
    below = parser.add_subparsers()
    for name, (_, options, summary) in commands.items():
        if isinstance(options, Mapping):
            _add(below.add_parser(name, help=summary), options)
            continue
        words = flags.parser(options, name, {})
        for action in words._actions:
            if action.metavar == "TEXT" or (not action.option_strings and action.choices is None):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        below.add_parser(name, help=summary, parents=[words], add_help=False)
