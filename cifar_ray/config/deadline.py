"""A deadline for a call that has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Overdue
from typing import Any, TypeVar

T = TypeVar("T")
__all__ = ["Overdue", "within"]


def within(seconds: float, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Return what a call returns, or raise ``Overdue``; the call goes on in a thread that nobody waits for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)
