"""Ray Tune's loop over the trials, in a thread of its own."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray.tune
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import Searcher

from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.cluster import optional
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.sweep.proposals import OptunaProposer
from cifar_ray.orchestration.sweep.trial import FAILED, SweepTrial, TrialSpec
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking.background import background
from cifar_ray.tracking.variables import variables

_CANCEL_S = 20.0
_LONGEST_REASON = 200
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the table of trials in the newer style, which verbose=0 does not silence
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # files of results
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial's last result says only that it is done
}


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
        self.ended.put((trial.config["trial"].index, False))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended.put((trial.config["trial"].index, True))


Admit = Callable[[int | None], bool | None]
"""Says whether a trial may start, by its index, or for None whether any more may be proposed; None: not known yet."""


class _Queue(Searcher):
    """What Ray Tune trains next: the trials that wait, in their order, and then those that are proposed."""

    def __init__(self, specs: Sequence[TrialSpec], proposer: OptunaProposer | None, admit: Admit | None = None) -> None:
        super().__init__()
        self._waiting, self._proposer = deque(specs), proposer
        self._admit: Admit = admit or (lambda _: True)
        self._indices: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[_Queue], tuple[tuple[()], None]]:
        return _Queue, ((), None)  # Ray Tune pickles its searcher; a sweep is resumed from its own record

    def suggest(self, trial_id: str) -> dict[str, TrialSpec] | str | None:
        spec = self._next()
        if not isinstance(spec, TrialSpec):
            return spec
        self._indices[trial_id] = spec.index
        return {"trial": spec}

    def _next(self) -> TrialSpec | str | None:
        """The next trial that may start; None while that is not known yet, FINISHED when there are no more."""
        while self._waiting:
            if (may := self._admit(self._waiting[0].index)) is None:
                return None
            spec = self._waiting.popleft()
            if may:
                return spec
        may = self._proposer is not None and self._admit(None)
        if self._proposer is None or not may:
            return None if may is None else self.FINISHED
        proposed = self._proposer.propose()
        if proposed is None or self._admit(proposed.index):
            return proposed or self.FINISHED
        self._proposer.ended(proposed.index, None)
        return self.FINISHED  # more proposals, which the limits would refuse as well, would use up the samples

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if self._proposer is not None:
            self._proposer.ended(self._indices[trial_id], None if error or FAILED in (result or {}) else result)

    def save(self, checkpoint_path: str) -> None:
        pass


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager, and decorator: Ray Tune with our settings, logging errors only."""
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.train")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with variables(_SETTINGS):
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


class Tuning:
    """``tuner.fit()`` in the background.

    Args:
        specs: the trials that wait.
        datasets: by their keys.
        folder: for Ray Tune's files, on this machine.
        scheduler: stops the trials that fall behind; None when all run to their end.
        proposer: of the trials that come after those that wait; None when none do.
        proposed: how many these are, at most.
        admit: called in Ray Tune's thread when there is a place for a trial; None lets all start.
    """

    def __init__(
        self,
        specs: Sequence[TrialSpec],
        datasets: Mapping[str, Dataset],
        mailbox: Mailbox,
        folder: Path,
        at_once: int,
        scheduler: TrialScheduler | None,
        proposer: OptunaProposer | None = None,
        proposed: int = 0,
        admit: Admit | None = None,
    ) -> None:
        references = {name: ray.put(dataset) for name, dataset in datasets.items()}
        trainable = ray.tune.with_parameters(SweepTrial, datasets=references, mailbox=mailbox)
        self._listener = _Listener()

        def admitted(index: int | None) -> bool | None:
            return not self._listener.cancelled and (admit is None or admit(index))

        tuner = ray.tune.Tuner(
            ray.tune.with_resources(trainable, optional.head_resource()),
            tune_config=ray.tune.TuneConfig(
                search_alg=_Queue(specs, proposer, admitted),
                num_samples=len(specs) + proposed,
                max_concurrent_trials=at_once,
                reuse_actors=scheduler is None,  # a stopped trial's process cannot be reused
                scheduler=scheduler,
            ),
            run_config=ray.tune.RunConfig(
                name=f"attempt-{time.time_ns()}",
                storage_path=str(folder),
                callbacks=[self._listener],
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),  # a run has its own
                verbose=0,
            ),
        )
        self._fitting = background(_quiet()(tuner.fit), "tuner-fit")

    @property
    def running(self) -> bool:
        return not self._fitting.done()

    @property
    def trouble(self) -> str:
        """Why the loop has failed, once it has ended, or an empty string."""
        error = self._fitting.exception()
        return "" if error is None else " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__

    def wait(self, timeout_s: float) -> None:
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


def scheduler_of(sweep: SweepConfig, goal: Goal, configs: Sequence[TrainConfig]) -> TrialScheduler | None:
    """Ray Tune's scheduler of a sweep, by the goal of these runs and by their epochs; None where it stops none."""
    if sweep.scheduler == "none":
        return None
    longest = max(config.epochs for config in configs)
    figure: dict[str, Any] = {"time_attr": "epoch", "metric": goal.metric, "mode": goal.better}
    grace = min(sweep.asha.grace, longest)  # a sweep that is resumed may have only its short runs left
    return ASHAScheduler(**figure, max_t=longest, grace_period=grace, reduction_factor=sweep.asha.reduction)
