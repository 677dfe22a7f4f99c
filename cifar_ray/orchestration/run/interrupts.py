"""Ending early, on a signal or because another driver has taken over, at a moment when that is safe."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from cifar_ray.config.errors import InterruptedRunError
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.run.attempt import RayLostError, RunFailedError
from cifar_ray.storage import Lock

_PATIENCE = 2  # signals
_SHOW_CURSOR = "\x1b[?25h"  # the display has hidden it


@contextmanager
def session(
    config: TrainConfig, say: Callable[[str], None], locks: Sequence[Lock] = ()
) -> Iterator[Callable[[], None]]:
    """Ray for the run, and what to call now and then to be interrupted by a signal or the loss of a lock or of Ray.

    An exception out of a signal handler is not safe inside Ray's compiled code.

    Args:
        config: which Ray to join or start.
        say: is told when an interruption begins to be seen to.
        locks: what this driver must not lose; may grow meanwhile.
    """
    pending: list[int] = []

    def check() -> None:
        if pending:
            say("interrupted; stopping Ray")
            raise InterruptedRunError(pending[0])
        if lost := ended():
            raise RayLostError(f"{lost} has ended: it was killed, or has failed; `cifar-ray resume` continues the run")
        check_locks(locks)

    # Twice, since Ray's compiled part sets a handler of its own when it starts.
    with signals(pending), connection.session(config) as ended, signals(pending):
        check()
        yield check


def check_locks(locks: Sequence[Lock]) -> None:
    """See whether all are still this driver's.

    Raises:
        RunFailedError: naming one that is not.
    """
    for held in locks:
        if held.lost:
            raise RunFailedError(
                f"{held.folder.address} has been taken over by another driver, as this one could not write there"
            )


@contextmanager
def signals(pending: list[int] | None = None) -> Iterator[None]:
    """Within it, SIGINT and SIGTERM raise :class:`InterruptedRunError` in the main thread.

    With a list, the first two are only noted in it, since an exception in the middle of Ray's code or of the clean-up
    leaves a traceback; the third ends the process at once, as SIGKILL would, but with a sentence.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, _: FrameType | None) -> None:
        if pending is None:
            raise InterruptedRunError(signum)
        pending.append(signum)
        if len(pending) > _PATIENCE:
            os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}error: {InterruptedRunError(signum)}\n".encode())
            os._exit(128 + signum)

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
