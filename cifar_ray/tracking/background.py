"""Calls in daemon threads, which the end of the process does not wait for as it does for an executor's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def background(call: Callable[[], T], name: str) -> Future[T]:
    """Start a call in a thread of that name, and return its future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # Ray raises errors of its own when an actor dies
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name=name).start()
    return future


def within(seconds: float, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Return what a call without a deadline of its own returns, or raise TimeoutError while the call goes on."""
    future = background(partial(call, *args, **options), "within")
    if not wait([future], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return future.result()
