"""``cifar-ray completion``: the script by which a shell completes the words of ``cifar-ray``."""

from __future__ import annotations

import argparse
from typing import Literal

import shtab

from cifar_ray.cli import main
from cifar_ray.config import flags


def completion(shell: Literal["bash", "zsh"]) -> int:
    """Print the script that completes cifar-ray's words in a shell: commands, flags, their values, and names of files.

    Args:
        shell: The shell.
    """
    parser = argparse.ArgumentParser("cifar-ray")
    below = parser.add_subparsers()
    for name, (_, summary) in main.COMMANDS.items():
        words = flags.parser(main.function(name), name, described=False)
        for action in words._actions:
            if action.metavar == "TEXT" or (not action.option_strings and action.choices is None):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        below.add_parser(name, help=summary, parents=[words], add_help=False)
    print(shtab.complete(parser, shell))
    return 0
