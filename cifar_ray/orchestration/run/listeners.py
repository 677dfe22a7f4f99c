"""A run's events for callbacks of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cifar_ray.config import errors
from cifar_ray.config.errors import ConfigError
from cifar_ray.training.observer import EpochRecord, Row, SavedCheckpoint, Started


class Callback:
    """Receives a run's events in the driver, in their order: override the methods you need.

    Training does not wait for callbacks; shutdown does. Variables, log levels and MLflow's address are after ``train``
    what they were before, even if a callback sets them. An exception in a callback is reported once, and training goes
    on. After workers were restarted from a checkpoint, rows and epochs after it come a second time.
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
        """The run is over and recorded: ``FINISHED``, ``FAILED`` or ``KILLED``."""


def checked(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks that ``train`` was given.

    Raises:
        ConfigError: when they are no list of callbacks.
    """
    is_list = isinstance(callbacks, list | tuple)
    wrong = [each for each in callbacks if not isinstance(each, Callback)] if is_list else [callbacks]
    if wrong:
        raise ConfigError("callbacks", f"must be a list of cifar_ray.Callback objects, got {errors.brief(wrong[0])}")
    return tuple(callbacks)


class Listeners:
    """Several callbacks, none of which can end the run."""

    def __init__(self, callbacks: Sequence[Callback], log: Callable[[str], None]) -> None:
        """``log`` is called with a sentence about one that has raised."""
        self._callbacks = callbacks
        self._log = log
        self._named: set[tuple[int, str]] = set()

    def call(self, method: str, event: Started | Row | EpochRecord | SavedCheckpoint | str) -> None:
        for number, callback in enumerate(self._callbacks):
            try:
                getattr(callback, method)(event)
            except Exception as error:
                if (number, method) not in self._named:
                    self._named.add((number, method))
                    goes_on = "" if method == "end" else "; training goes on"
                    self._log(f"{type(callback).__name__}.{method} raised {type(error).__name__}: {error}{goes_on}")
