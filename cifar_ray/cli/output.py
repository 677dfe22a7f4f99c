"""A command's result: as words, as one JSON document, or as one line; and its progress beside it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def progress(as_json: bool, quiet: bool = False) -> Iterator[None]:
    """Context manager: what is printed goes to standard error with --json, and nowhere with --quiet."""
    if quiet:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123
            yield
    elif as_json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def show(result: object, as_json: bool, words: Callable[[], object] | None = None) -> None:
    """Print a result as JSON, or have ``words`` print it; None where they have been printed already."""
    if as_json:
        print(json.dumps(result, indent=1, default=_plain))
    elif words is not None:
        words()


def _plain(value: object) -> object:
    """A dataclass as its fields, and anything else that JSON lacks as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)
