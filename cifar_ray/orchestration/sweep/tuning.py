"""Ray Tune's loop in a thread of its own, and what the sweep's driver hears of it."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray.tune
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import ASHAScheduler

from cifar_ray.config.train import TrainConfig

_CANCEL_S = 20.0


class _CancelledError(Exception):
    """Ends Ray Tune's loop from within."""


class Listener(TrialProgressCallback):
    """Notes in Ray Tune's thread which trials have ended, for the driver's own thread to read.

    Attributes:
        cancelled: when True, Ray Tune's loop ends at its next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = False
        self._ended: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()

    def __reduce__(self) -> tuple[type[Listener], tuple[()]]:
        return Listener, ()  # Ray Tune keeps a copy of its callbacks on disk, which nothing ends in

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        pass  # it stands in for Ray Tune's own callback of that kind, which prints

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if self.cancelled:
            raise _CancelledError

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended.put((trial.config["index"], False))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended.put((trial.config["index"], True))

    def take(self) -> list[tuple[int, bool]]:
        """The places of the trials that have ended since the last call, and whether with an error."""
        found = []
        while not self._ended.empty():
            found.append(self._ended.get())
        return found


@dataclass
class Fitting:
    """``tuner.fit()`` in a thread, so that the main thread can show and record what happens."""

    tuner: ray.tune.Tuner
    listener: Listener
    trouble: str = ""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True, name="tuner-fit")
        self.thread.start()

    def cancel(self) -> None:
        """End Ray Tune's loop; going on after Ray has ended, it would start another."""
        self.listener.cancelled = True
        self.thread.join(_CANCEL_S)

    def _run(self) -> None:
        for name in ("ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.ERROR)
        # Tune's own files of results, and its table of trials in the newer style, which verbose=0 does not silence.
        os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
        try:
            self.tuner.fit()
        except BaseException as error:  # whatever ends Ray Tune ends the sweep
            self.trouble = " ".join(str(error).split())[:200] or type(error).__name__


def asha(configs: Sequence[TrainConfig]) -> ASHAScheduler:
    """Ray Tune's ASHA on test accuracy, by epochs of these runs."""
    longest = max(config.epochs for config in configs)
    return ASHAScheduler(time_attr="epoch", metric="accuracy", mode="max", max_t=longest, grace_period=1)
