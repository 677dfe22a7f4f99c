"""Ending early, on a signal or because another driver has taken over, at a moment when that is safe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from cifar_ray.config import TrainConfig
from cifar_ray.orchestration import cluster
from cifar_ray.orchestration.attempt import RunFailedError
from cifar_ray.storage import Held, Lease


class InterruptedRunError(BaseException):
    """A signal has ended the run; like KeyboardInterrupt, it is not for ``except Exception``."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {signal.Signals(signum).name}")


@contextmanager
def session(
    config: TrainConfig, say: Callable[[str], None], locks: Sequence[Held] = ()
) -> Iterator[Callable[[], None]]:
    """Ray for the run, and what to call now and then to be interrupted by a signal or the loss of a lock.

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
        check_locks(locks)

    # Twice, since Ray's compiled part sets a handler of its own when it starts.
    with signals(pending), cluster.session(config), signals(pending):
        check()
        yield check


def check_locks(locks: Sequence[Held]) -> None:
    """See whether all are still this driver's.

    Raises:
        RunFailedError: naming one that is not.
    """
    for held in locks:
        if isinstance(held, Lease) and held.lost:
            raise RunFailedError(
                f"{held.folder.address} has been taken over by another driver, as this one could not write there"
            )


@contextmanager
def signals(pending: list[int] | None = None) -> Iterator[None]:
    """Within it, SIGINT and SIGTERM raise :class:`InterruptedRunError` in the main thread.

    With a list, the first signal is only noted in it, and the second raises.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, _: FrameType | None) -> None:
        if pending is None or pending:
            raise InterruptedRunError(signum)
        pending.append(signum)

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
