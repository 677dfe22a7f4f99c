"""A call in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """A call in a daemon thread, so that the main thread can display and record what happens meanwhile.

    Attributes:
        result: what the call returned; None before.
        error: what it raised.
    """

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self.result: T | None = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the call has not returned yet."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the call, at most ``timeout_s`` seconds."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # Ray raises errors of its own when an actor dies
            self.error = error
