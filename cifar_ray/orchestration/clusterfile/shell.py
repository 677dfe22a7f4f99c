"""The shell commands of a cluster file: where they are, what they call, and whether a shell can read them."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cifar_ray.orchestration.clusterfile.read import listing, node_types

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
_BEFORE_A_PROGRAM = {"then", "do", "else", "if", "elif", "while", "until", "!", "{", "time"}

_WRAPPERS: dict[str, tuple[set[str], int]] = {
    "sudo": ({"-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T", "--user", "--group"}, 0),
    "env": ({"-u", "-C"}, 0),
    "timeout": ({"-s", "-k"}, 1),
    "nice": ({"-n"}, 0),
    "ionice": ({"-c", "-n"}, 0),
    "stdbuf": ({"-i", "-o", "-e"}, 0),
    "flock": ({"-w", "-E"}, 1),
    "exec": ({"-a"}, 0),
    "command": (set(), 0),
    "nohup": (set(), 0),
    "setsid": (set(), 0),
}
"""Programs that call another one: their options that take a value, and how many words come before its name."""

_SHELLS = {"sh", "bash", "dash", "zsh"}

_OUTSIDE_QUOTES = re.compile(
    r"""(?P<kept>'[^']*'|"(?:\\.|[^"\\])*"|\\[^\n])|\\\n|(?:^|(?<=[\s;&|()]))\#[^\n]*|(?P<line>\n)""",
    re.DOTALL,
)
"""What is quoted, which stays; and what is not: lines that go on in the next one, comments, ends of lines."""


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
        """The programs that it calls, in order; none when it cannot be taken apart, which ``syntax`` tells."""
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
    """What bash has to say against a command, without running it; and whether it is too intricate to be judged."""
    for command in commands(config):
        read = subprocess.run(
            ["bash", "-n", "-c", command.text], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
        )
        if read.returncode:
            complaint = " ".join(re.sub(r"bash: (-c: )?line \d+: ", "", read.stderr.split("\n")[0]).split())
            yield f"{command.key} is not a shell command: {complaint}"
            continue
        try:
            list(_calls(command.text))
        except ValueError as error:
            yield f"{command.key} cannot be judged ({error}): write it plainly, or put it into a file of file_mounts"


def _listed(key: str, values: Any) -> Iterator[Command]:
    for position, text in enumerate(listing(values)):
        if isinstance(text, str):
            yield Command(f"{key}[{position}]", text)


def _calls(text: str) -> Iterator[Call]:
    """Take a command apart.

    Raises:
        ValueError: when it cannot be, with the reason.
    """
    text = _OUTSIDE_QUOTES.sub(lambda found: found["kept"] or (" ; " if found["line"] else " "), text)
    words = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>")
    words.whitespace_split = True
    words.commenters = ""
    exported: dict[str, str] = {}
    simple: list[str] = []
    redirected = False
    for word in [*words, ";"]:
        if redirected:
            redirected = False
        elif set(word) <= set("<>&") and set(word) & set("<>"):
            if word == "<<":
                raise ValueError("a here-document")
            # `2>&1` and `> file` are about the call's output, not words of it.
            redirected = True
            simple = simple[:-1] if simple and simple[-1].isdigit() else simple
        elif set(word) <= set(";&|()"):
            yield from _call(simple, exported)
            simple = []
        else:
            simple.append(word)


def _call(words: list[str], exported: dict[str, str]) -> Iterator[Call]:
    words, variables = _unwrapped(words, dict(exported))
    if not words:
        return
    name = words[0].rsplit("/", 1)[-1]
    if name == "export":
        exported.update((word.partition("=")[0], word.partition("=")[2]) for word in words[1:])
    yield Call((name, *words[1:]), variables)
    if name in _SHELLS:
        for flag, script in itertools.pairwise(words[1:]):
            if re.fullmatch(r"-[a-z]*c", flag):
                yield from (Call(call.words, variables | call.variables) for call in _calls(script))


def _unwrapped(words: list[str], variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The program and its arguments, without what stands before it; and the variables that reach it."""
    while words:
        name, _, value = words[0].partition("=")
        wrapper = words[0].rsplit("/", 1)[-1]
        if _ASSIGNMENT.match(words[0]):
            variables[name] = value
            words = words[1:]
        elif wrapper in _WRAPPERS:
            with_value, before = _WRAPPERS[wrapper]
            words = words[1:]
            options = []
            while words and words[0].startswith("-"):
                options.append(words[0])
                words = words[2 if words[0] in with_value else 1 :]
            words = words[before:]
            # sudo keeps its caller's variables from the program unless it is told not to.
            if wrapper == "sudo" and not any(re.match(r"-E|--preserve-env", option) for option in options):
                variables = {}
        elif words[0] in _BEFORE_A_PROGRAM:
            words = words[1:]
        else:
            break
    return words, variables
