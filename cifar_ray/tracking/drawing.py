"""Draw with matplotlib's own settings, whatever the user has set."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cifar_ray.config import imports

_one_at_a_time = threading.RLock()
"""Runs of a sweep end at their own times, and matplotlib's settings are one for all threads."""


@contextmanager
def settings(changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Context manager: matplotlib with its default settings and these ``changes``, and text that is never a formula.

    What is drawn in it must be saved in it, too. The user's matplotlibrc, ``rcParams`` and ``MPLBACKEND`` change
    nothing, and stay as they are.
    """
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks
        matplotlib = imports.matplotlib()
        defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
        with matplotlib.rc_context({**defaults, "text.parse_math": False, **(changes or {})}):
            yield


def plain(text: str) -> str:
    """``text`` as matplotlib can draw it: no letters that are none, and no ``_`` at its start, which hides a label."""
    text = re.sub("[\x00-\x1f\x7f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return f" {text}" if text.startswith("_") else text
