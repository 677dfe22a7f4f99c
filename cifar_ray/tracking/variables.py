"""Environment variables for a while."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Context manager: set environment variables, and give them their earlier values at the end."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        restore(before, values)


def restore(before: Mapping[str, str], names: Iterable[str]) -> None:
    """Give environment variables the values that they had ``before``."""
    for name in names:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)
