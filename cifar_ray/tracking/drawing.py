"""Draw with matplotlib's own settings, whatever the user has set."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
        matplotlib = _matplotlib()
        defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
        with matplotlib.rc_context({**defaults, "text.parse_math": False, **(changes or {})}):
            yield


def plain(text: str) -> str:
    """``text`` as matplotlib can draw it: no letters that are none, and no ``_`` at its start, which hides a label."""
    text = re.sub("[\x00-\x1f\x7f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return f" {text}" if text.startswith("_") else text


def _matplotlib() -> Any:
    try:
        import matplotlib
    except Exception:  # MPLBACKEND names a backend that is not installed here, as Jupyter's, or matplotlibrc is damaged
        names = ("MPLBACKEND", "MATPLOTLIBRC")
        user = {name: os.environ[name] for name in names if name in os.environ}
        for half in [module for module in sys.modules if module.startswith("matplotlib.")]:
            del sys.modules[half]
        os.environ.update(MPLBACKEND="agg", MATPLOTLIBRC=os.devnull)
        try:
            import matplotlib
        finally:
            for name in names:
                del os.environ[name]
            os.environ.update(user)
    return matplotlib
