"""What a Python program may hear of a run while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cifar_ray.training.observer import EpochRecord, Row, SavedCheckpoint, Started


class Callback:
    """Hears of a run's events in the driver, in their order: subclass it, and write the methods that you need.

    Steps do not wait for a method. One that raises is named, once, and training goes on.
    """

    def started(self, event: Started) -> None:
        """The first step is next; again after workers were restarted or moved."""

    def iteration(self, row: Row) -> None:
        """Every ``--log-every`` steps: the losses of all ranks and what a step took."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch has ended and was evaluated."""

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        """A checkpoint is complete."""

    def end(self, status: str) -> None:
        """The run is over: ``FINISHED``, ``FAILED`` or ``KILLED``."""


class Listeners:
    """Several callbacks, none of which can end the run."""

    def __init__(self, callbacks: Sequence[Callback], say: Callable[[str], None]) -> None:
        """``say`` is called with a sentence about one that has raised."""
        self._callbacks = callbacks
        self._say = say
        self._named: set[tuple[int, str]] = set()

    def tell(self, method: str, event: Started | Row | EpochRecord | SavedCheckpoint | str) -> None:
        """Call this method of each."""
        for number, callback in enumerate(self._callbacks):
            try:
                getattr(callback, method)(event)
            except Exception as error:
                if (number, method) not in self._named:
                    self._named.add((number, method))
                    told = f"{type(callback).__name__}.{method} raised {type(error).__name__}: {error}"
                    self._say(f"{told}; training goes on")
