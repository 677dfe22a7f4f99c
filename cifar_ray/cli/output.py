"""A command's result, as words or as one JSON document, and its progress beside it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout

from pydantic_core import to_jsonable_python


def progress(as_json: bool) -> AbstractContextManager[object]:
    """Context manager: what is printed goes to standard error with --json."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def show(result: object, as_json: bool, words: Callable[[], object] | None = None) -> None:
    """Print a result as JSON, or have ``words`` print it; None where they have been printed already."""
    if as_json:
        print(json.dumps(to_jsonable_python(result, inf_nan_mode="null", fallback=str), indent=1))
    elif words is not None:
        words()


def typed() -> str:
    """The command of this process, as it can be typed again."""
    return shlex.join(["cifar-ray", *sys.argv[1:]])
