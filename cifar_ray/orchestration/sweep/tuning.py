"""Ray Tune's loop over the trials, in a thread of its own."""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import ray.tune
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import ASHAScheduler

from cifar_ray import tasks
from cifar_ray.config.background import background
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.cluster import optional
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.sweep.trial import SweepTrial, TrialSpec

_CANCEL_S = 20.0
_LONGEST_REASON = 200


class _CancelledError(Exception):
    """Ends Ray Tune's loop from within."""


class _Listener(TrialProgressCallback):
    """Runs in Ray Tune's thread: collects the trials that have ended, for the driver's own thread to read.

    Attributes:
        cancelled: when True, Ray Tune's loop ends at its next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = False
        self.ended: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()

    def __reduce__(self) -> tuple[type[_Listener], tuple[()]]:
        return _Listener, ()  # Ray Tune pickles its callbacks; that copy collects nothing

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        pass  # replaces Ray Tune's own callback, which prints

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if self.cancelled:
            raise _CancelledError

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended.put((trial.config["index"], False))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended.put((trial.config["index"], True))


class Tuning:
    """``tuner.fit()`` in the background.

    Args:
        specs: trials by their index in the sweep.
        datasets: the data sets that they need, by ``dataset_key``.
        mailbox: the sweep's.
        folder: for Ray Tune's files, on this machine.
        at_once: trials at a time.
        racing: the configs of the trials when ASHA is to stop those that fall behind; None when all run to their end.
    """

    def __init__(
        self,
        specs: Mapping[int, TrialSpec],
        datasets: Mapping[str, Dataset],
        mailbox: Mailbox,
        folder: Path,
        at_once: int,
        racing: Sequence[TrainConfig] | None,
    ) -> None:
        references = {name: ray.put(dataset) for name, dataset in datasets.items()}
        trainable = ray.tune.with_parameters(SweepTrial, specs=dict(specs), datasets=references, mailbox=mailbox)
        self._listener = _Listener()
        tuner = ray.tune.Tuner(
            ray.tune.with_resources(trainable, optional.head_resource()),
            param_space={"index": ray.tune.grid_search(list(specs))},
            tune_config=ray.tune.TuneConfig(
                max_concurrent_trials=at_once,
                reuse_actors=racing is None,  # a stopped trial's process cannot be reused
                scheduler=None if racing is None else _asha(racing),
            ),
            run_config=ray.tune.RunConfig(
                name=f"attempt-{time.time_ns()}",
                storage_path=str(folder),
                callbacks=[self._listener],
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),  # a run has its own
                verbose=0,
            ),
        )
        for name in ("ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.ERROR)
        # Tune's own result files, and its table of trials in the newer style, which verbose=0 does not silence.
        os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
        os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial's last result says only that it is done
        self._fitting = background(tuner.fit, "tuner-fit")

    @property
    def running(self) -> bool:
        """Whether Ray Tune's loop has not ended."""
        return not self._fitting.done()

    @property
    def trouble(self) -> str:
        """Why the loop has failed, once it has ended, or an empty string."""
        error = self._fitting.exception()
        return "" if error is None else " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the loop, at most ``timeout_s`` seconds."""
        wait([self._fitting], timeout_s)

    def take_ended(self) -> list[tuple[int, bool]]:
        """Indices of the trials that have ended since the last call, and whether with an error."""
        ended = []
        while not self._listener.ended.empty():
            ended.append(self._listener.ended.get())
        return ended

    def cancel(self) -> None:
        """End the loop; otherwise it would start another Ray when this one ends."""
        self._listener.cancelled = True
        wait([self._fitting], _CANCEL_S)


def _asha(configs: Sequence[TrainConfig]) -> ASHAScheduler:
    """Ray Tune's ASHA on the primary figure of the task that these runs share, by their epochs."""
    primary, longest = tasks.spec(configs[0]).primary, max(config.epochs for config in configs)
    return ASHAScheduler(time_attr="epoch", metric=primary.metric, mode=primary.better, max_t=longest, grace_period=1)
