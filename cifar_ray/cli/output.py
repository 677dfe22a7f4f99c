"""A command's result: as words, as one JSON document, or as one line; and its progress beside it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
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
        print(json.dumps(_plain(result), indent=1))
    elif words is not None:
        words()


def _plain(value: object) -> object:
    """A dataclass as its fields, a number that is none or infinite as null, and what else JSON lacks as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
