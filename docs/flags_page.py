"""Sphinx extension: the page of all commands and flags, from the parsers that read them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from cifar_ray.cli import main
from cifar_ray.config import flags

PAGE = "commands"


def blocks() -> Iterator[str]:
    """Blocks of Markdown that describe the commands."""
    owners: dict[str, str] = {}  # title of a section of flags -> the program that has it on the page
    for name in main.COMMANDS:
        program = f"cifar-ray {name}"
        parser = flags.parser(main.function(name), program)
        yield f"## {program}\n\n```{{program}} {program}\n```\n\n```\n{parser.usage}\n```"
        yield from (f"```\n{part}\n```" if part[0] == " " else text(part) for part in parser.description.split("\n\n"))
        general, sections = parser._action_groups[:2], parser._action_groups[2:]
        new = [section for section in sections if owners.setdefault(section.title, program) == program]
        for section in (*general, *new):
            if section in new:
                yield f"### {section.title}\n\n{text(section.description or '')}"
            actions = [action for action in section._group_actions if not isinstance(action, argparse._HelpAction)]
            yield from map(option, actions)
        if others := sorted({owners[section.title] for section in sections} - {program}):
            yield f"Also the options of `{'`, `'.join(others)}` under their headings."


def option(action: argparse.Action) -> str:
    """The directive that describes a flag, or a word without a flag."""
    value = "" if action.nargs == 0 else f" {action.metavar}{' ...' * (action.nargs in ('+', '*'))}"
    names = ", ".join(flag + value for flag in action.option_strings) or value.strip().upper()
    return f"```{{option}} {names}\n\n{text((action.help or '').replace('%%', '%'))}\n```"


def text(plain: str) -> str:
    """Help as Markdown: what is code in it, and flags."""
    parts = re.split("(`[^`]*`)", plain.replace("``", "`"))
    parts[::2] = (
        re.sub(r"(?<!\w)--[a-z][\w.-]*\w", r"`\g<0>`", re.sub(r"[*_<[]", r"\\\g<0>", part)) for part in parts[::2]
    )
    return "".join(parts)


def setup(app: Any) -> None:
    """Append the commands to their page, at every build: no file tells Sphinx whether they have changed."""

    def read(app: Any, page: str, source: list[str]) -> None:
        if page == PAGE:
            source[0] += "\n\n".join(["", *blocks()])

    app.connect("source-read", read)
    app.connect("env-get-outdated", lambda *_: [PAGE])
