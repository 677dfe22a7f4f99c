"""What the files of commands share: words read as options, and notes beside the output."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Sequence
from typing import TypeVar

import tyro

from cifar_ray.config import strict
from cifar_ray.config.errors import ConfigError

T = TypeVar("T")


def read(kind: type[T], words: Sequence[str], default: T | None, command: str) -> T:
    """The words as a ``kind``. What tyro refuses is told in one sentence instead of its box."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            if default is None:
                return tyro.cli(kind, args=words, prog=f"cifar-ray {command}")
            return tyro.cli(kind, args=words, prog=f"cifar-ray {command}", default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
    if default is not None:
        strict.build(kind, strict.parse_flags(kind, words), default)
    _check_values(kind, words)
    # What is left is about the few words of the smaller commands.
    text = " ".join(re.sub(r"[^\x20-\x7e]+", " ", complaint.getvalue().split("For full helptext")[0]).split())
    problem = "needs more words" if text.startswith("Required") else text.removeprefix("Unrecognized options ")
    raise ConfigError("", f"cifar-ray {command}: {problem}; `cifar-ray {command} --help` tells what it takes")


def _check_values(kind: type, words: Sequence[str]) -> None:
    """Refuse a value that its flag cannot take."""
    kinds = strict.flat_types(kind)
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        flag, equals, inline = word.partition("=")
        key = flag[2:].replace("-", "_")
        value = inline if equals else following
        if flag.startswith("--") and kinds.get(key, bool) is not bool and value and not value.startswith("--"):
            with contextlib.suppress(KeyError):  # a type that only tyro knows
                strict.convert(key, value, kinds[key])


def note(sentence: str) -> None:
    """Tell a person something that is no result."""
    print(f"note: {sentence}", file=sys.stderr)
