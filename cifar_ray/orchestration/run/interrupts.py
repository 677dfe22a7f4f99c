"""End a command early where that is safe: on a signal, or because Ray was lost."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import InterruptedRunError, RunFailedError
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.terminal import Display
from cifar_ray.orchestration.cluster import connection

_PATIENCE = 2  # signals before the process ends at once
_APART_S = 1  # what comes sooner after a signal is the same wish: a shaky finger, or a parent that passes it on as well
_SPREAD_S = 0.5  # until SIGTERM has ended the others that it was sent to
_SHOW_CURSOR = "\x1b[?25h"  # which the display hides


class RayLostError(RunFailedError):
    """Ray itself has ended under the run, and answers no more calls."""


class InterruptedWithRayError(InterruptedRunError):
    """The signal has ended Ray, too: ``timeout`` and others send SIGTERM to a command and all that it has started."""


RAY_LOST = (RayLostError, InterruptedWithRayError)


@contextmanager
def connected(
    config: TrainConfig, display: Display, functions: Sequence[str] = (), room: Decided | None = None
) -> Iterator[Callable[..., bool]]:
    """Context manager: as :func:`cifar_ray.orchestration.cluster.connection.connected`, shown on a ``display``.

    Yields:
        A function to call several times a second: it raises after a signal, or when Ray is lost. (A signal
        handler must not raise inside Ray's compiled code.) Called with True, since workers can stop with a checkpoint,
        it returns True after the first signal, and raises after the second.
    """
    pending: list[int] = []
    announced = False

    def check(can_stop: bool = False) -> bool:
        nonlocal announced
        if pending:
            if not announced and pending[0] == signal.SIGTERM:
                time.sleep(_SPREAD_S)
            lost = ended()
            stops = can_stop and len(pending) == 1 and not lost
            if not announced or len(pending) > 1:
                again = "stopping after this step, with a checkpoint; Ctrl-C again stops at once"
                display.line(again if stops else "interrupted; stopping Ray")
                announced = True
            if not stops:
                raise (InterruptedWithRayError if lost else InterruptedRunError)(pending[0])
        elif lost := ended():
            raise RayLostError(f"{lost} has ended: it was killed, or has failed; `cifar-ray resume` continues the run")
        return bool(pending)

    # Twice, since Ray's compiled part installs a handler of its own when it starts.
    with signals(pending), connection.connected(config, functions, display.doing, room) as ended, signals(pending):
        check()
        yield check


@contextmanager
def signals(pending: list[int] | None = None) -> Iterator[None]:
    """Context manager: SIGINT and SIGTERM raise :class:`InterruptedRunError` in the main thread.

    With a list, the first two are only added to it, since an exception within Ray's code or the clean-up would leave a
    traceback; the third ends the process at once, with a sentence. Signals within a second count as one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    last = -math.inf

    def interrupt(signum: int, _: FrameType | None) -> None:
        nonlocal last
        if pending is None:
            raise InterruptedRunError(signum)
        now = time.monotonic()
        if now - last < _APART_S:
            return
        last = now
        pending.append(signum)
        if len(pending) > _PATIENCE:
            cursor = _SHOW_CURSOR if os.isatty(2) else ""
            os.write(2, f"{cursor}Stopped at once by {signal.Signals(signum).name}.\n".encode())
            os._exit(128 + signum)

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
