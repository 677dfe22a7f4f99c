"""The shell commands of a cluster file: where they are, what they call, and whether a shell can read them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cifar_ray.clusterfile.read import listing, node_types

LISTS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
_OF_A_TYPE = ("initialization_commands", "worker_setup_commands")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_BEFORE_A_PROGRAM = {"sudo", "exec", "env", "nohup", "then", "do", "else", "!", "time"}


@dataclass(frozen=True)
class Call:
    """One program that a command calls.

    Attributes:
        words: the program's base name and its arguments.
        variables: what is set for it, by assignments before it or exported earlier in the same command.
    """

    words: tuple[str, ...]
    variables: dict[str, str]


@dataclass(frozen=True)
class Command:
    """One entry of a list of commands.

    Attributes:
        key: where it is, such as ``setup_commands[1]``.
        text: the command.
    """

    key: str
    text: str

    def calls(self) -> tuple[Call, ...]:
        """The programs that it calls, in order; none when its quotes do not match."""
        try:
            return tuple(_calls(self.text))
        except ValueError:
            return ()


def commands(config: dict[str, Any]) -> Iterator[Command]:
    """Every command of the file, those of single node types included."""
    for key in LISTS:
        yield from _listed(key, config.get(key))
    for name, kind in node_types(config).items():
        for key in _OF_A_TYPE:
            yield from _listed(f"available_node_types.{name}.{key}", kind.get(key))


def syntax(config: dict[str, Any]) -> Iterator[str]:
    """What bash has to say against a command, without running it."""
    for command in commands(config):
        read = subprocess.run(
            ["bash", "-n", "-c", command.text], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
        )
        if read.returncode:
            complaint = " ".join(re.sub(r"bash: (-c: )?line \d+: ", "", read.stderr.split("\n")[0]).split())
            yield f"{command.key} is not a shell command: {complaint}"


def _listed(key: str, values: Any) -> Iterator[Command]:
    for position, text in enumerate(listing(values)):
        if isinstance(text, str):
            yield Command(f"{key}[{position}]", text)


def _calls(text: str) -> Iterator[Call]:
    words = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    words.whitespace_split = True
    words.commenters = ""
    exported: dict[str, str] = {}
    simple: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set(";&|()"):
            yield from _call(simple, exported)
            simple = []
        else:
            simple.append(word)


def _call(words: list[str], exported: dict[str, str]) -> Iterator[Call]:
    variables = dict(exported)
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _BEFORE_A_PROGRAM):
        name, equals, value = words[0].partition("=")
        if equals:
            variables[name] = value
        words = words[1:]
    if words and words[0] == "export":
        exported.update((word.partition("=")[0], word.partition("=")[2]) for word in words[1:])
    if words:
        yield Call((words[0].rsplit("/", 1)[-1], *words[1:]), variables)
