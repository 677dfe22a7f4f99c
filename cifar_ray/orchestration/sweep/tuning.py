"""Ray Tune's loop over the cells of a sweep, in a thread of its own: it would take SIGINT from the main thread."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import ray.tune
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import optional
from cifar_ray.orchestration.sweep.cell import CELL, CellTrainable
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking.background import background

_LOOK_S, _ANSWER_S, _END_S = 0.2, 30.0, 600.0
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the table of trials in the newer style, which verbose=0 does not silence
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # files of results
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that has failed has no figure
}


class _Ends(TrialProgressCallback, ray.tune.Stopper):
    """Tells the board what has ended, and ends the loop when the driver says so.

    It takes the place of Ray Tune's own callback, which prints.
    """

    def __init__(self, board: Any, cells: int) -> None:
        super().__init__()
        self._board, self._cells = board, cells

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        pass

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Wait for the last cells to be recorded: Ray Tune kills what lasts 10 s longer than its loop."""
        ended = sum(other is trial or other.is_finished() for other in trials)  # of those that Ray Tune has made so far
        end = time.monotonic() + _END_S
        while ended == self._cells and not self._says_so("stopped", trial.config[CELL]) and time.monotonic() < end:
            time.sleep(_LOOK_S)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._board.died.remote(trial.config[CELL])

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._says_so("over")

    def _says_so(self, question: str, *given: int) -> bool:
        """What the board answers; no when it does not."""
        with suppress(ray.exceptions.RayError):
            return bool(ray.get(getattr(self._board, question).remote(*given), timeout=_ANSWER_S))
        return False


def start(board: Any, cells: list[int], folder: Path, at_once: int, scheduler: TrialScheduler | None) -> Future[Any]:
    """Start ``tuner.fit()`` in the background, with Ray Tune's files in ``folder``; what it raises is the future's.

    Cells begin in the order of these numbers, so many at once; ``board`` is the actor. Variables and log levels stay
    changed.
    """
    os.environ.update(_SETTINGS)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    ends = _Ends(board, len(cells))
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(ray.tune.with_parameters(CellTrainable, board=board), _here()),
        param_space={CELL: ray.tune.grid_search(cells)},
        tune_config=ray.tune.TuneConfig(
            max_concurrent_trials=at_once,
            reuse_actors=scheduler is None,  # a stopped trial's process cannot be reused
            scheduler=scheduler,
        ),
        run_config=ray.tune.RunConfig(
            name=f"attempt-{time.time_ns()}",
            storage_path=str(folder),
            callbacks=[ends],
            stop=ends,
            checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),  # a run has its own
            verbose=0,
        ),
    )
    return background(tuner.fit, "tuner-fit")


def _here() -> dict[str, float]:
    """Resources that place an actor without CPUs on this node, which has the store and the data."""
    here = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == here)
    head = optional.head_resource()
    is_head = head and head.keys() <= node["Resources"].keys()
    return head if is_head else {f"node:{node['NodeManagerAddress']}": 0.001}


def scheduler_of(sweep: SweepConfig, goal: Goal, configs: Sequence[TrainConfig]) -> TrialScheduler | None:
    """Ray Tune's scheduler of a sweep, by the goal of these runs and by their epochs; None where it stops none."""
    if sweep.scheduler == "none":
        return None
    longest = max(config.epochs for config in configs)
    grace = min(sweep.asha_grace, longest)  # a sweep that is resumed may have only its short runs left
    return ASHAScheduler(
        "epoch", goal.metric, goal.better, max_t=longest, grace_period=grace, reduction_factor=sweep.asha_reduction
    )
