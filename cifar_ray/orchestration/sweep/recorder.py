"""Display and record the events of a sweep's runs, and set the final status of each and of the sweep."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.data import Dataset
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board, RunView
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.sweep.planner import Trial
from cifar_ray.orchestration.sweep.trial import TrialEvent, TrialFinished, TrialStarted
from cifar_ray.tracking import parent, store, uri
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import MEASURE_TAG
from cifar_ray.training.observer import PHASES, EpochRecord

_STORE_PATIENCE_S = 60.0
_TAKE_S, _LAST_TAKE_S = 5.0, 30.0


@dataclass
class SweepRecorder:
    """Displays and records the runs of one sweep.

    Attributes:
        config: the sweep's.
        trials: all of its trials, by index.
        board: where they are displayed.
        client: MLflow's.
        record: the sweep's own MLflow run.
        datasets: data sets by ``dataset_key``.
        begun: ``time.time()`` from which wall time is counted.
        at_once: trials at a time.
    """

    config: SweepConfig
    trials: Sequence[Trial]
    board: Board
    client: Client
    record: SweepRecord
    datasets: Mapping[str, Dataset]
    begun: float
    at_once: int

    def handle(self, message: TrialEvent) -> None:
        """Display and record one event of a trial; a stopped one may still have some on their way."""
        trial = self.trials[message.index]
        if trial.state in (boards.WAITING, boards.RUNNING):
            self._on(message.event, trial)

    @singledispatchmethod
    def _on(self, event: Any, trial: Trial) -> None:
        if trial.session is not None:
            trial.session.handle(event)

    @_on.register
    def _(self, event: EpochRecord, trial: Trial) -> None:
        trial.epoch = event.row.step
        before = trial.times.get("time/training_s", 0.0)  # all that is known of a run that fails or is stopped
        trial.times = {**trial.times, "time/training_s": before + event.row.metrics["epoch_s"]}
        if trial.session is not None:
            trial.session.handle(event)

    @_on.register
    def _(self, event: TrialStarted, trial: Trial) -> None:
        assert trial.config is not None
        assert trial.folder is not None
        self.board.begin(trial.index)
        trial.state = boards.RUNNING
        trial.session = RunSession(
            trial.config,
            self.datasets[trial.config.dataset_key],
            trial.folder,
            self._open_record(trial, event.at),
            RunView(self.board, trial.index),
            trial.unused_gpus,
        )

    @_on.register
    def _(self, event: TrialFinished, trial: Trial) -> None:
        if event.outcome is None:
            self.close(trial, boards.FAILED, event.reason)
            return
        trial.outcome, trial.times = event.outcome, event.outcome.times
        self.close(trial, boards.FINISHED, boards.result(event.outcome.metrics["test/accuracy"], trial.times))

    def _open_record(self, trial: Trial, begun: float) -> RunRecord:
        """The trial's run in MLflow; a store that is away for a moment does not end the sweep."""
        end = time.monotonic() + _STORE_PATIENCE_S
        while True:
            try:
                return self._record_of(trial, begun)
            except ConfigError:
                if time.monotonic() > end:
                    raise
                time.sleep(1)

    def _record_of(self, trial: Trial, begun: float) -> RunRecord:
        assert trial.config is not None
        assert trial.folder is not None
        if trial.run_id:
            return RunRecord.reopen(self.client, trial.config, trial.run_id)
        tags = {**self.record.child_tags, store.SWEEP_TAG: self.config.name, MEASURE_TAG: self.config.measure}
        dataset, folder = self.datasets[trial.config.dataset_key], trial.folder
        home, name = self.record.experiment_id, trial.cell.name
        return RunRecord.create(self.client, trial.config, name, folder.key, folder.address, dataset, begun, tags, home)

    def close(self, trial: Trial, state: str, note: str) -> None:
        """Display and record a run's end; ``note`` is its result, or why it has none."""
        trial.state, trial.reason = state, "" if state == boards.FINISHED else note
        self.board.end(trial.index, state, note)
        if trial.session is not None:
            if trial.outcome is not None:
                trial.session.finish(trial.outcome)
            if state == boards.STOPPED:
                trial.session.record.tags({parent.STOPPED_TAG: "asha"})
            status = {boards.FINISHED: "FINISHED", boards.FAILED: "FAILED"}.get(state, "KILLED")
            _end_session(trial, trial.session, status, trial.reason)
        self.record.figures(self.figures())

    def catch_up(self, mailbox: Mailbox, ended: Sequence[tuple[int, bool]]) -> None:
        """Handle new events, and close trials that have not reported their own end.

        Args:
            mailbox: the sweep's.
            ended: indices of the trials that Ray Tune has ended, and whether with an error.
        """
        for event in mailbox.take(_TAKE_S):
            self.handle(event)
        if ended:  # the events above may have been taken before these trials ended
            for event in mailbox.take(_LAST_TAKE_S):
                self.handle(event)
        for index, failed in ended:
            self._close_silent(index, failed)

    def _close_silent(self, index: int, failed: bool) -> None:
        trial = self.trials[index]
        if trial.state not in (boards.RUNNING, boards.WAITING):
            return
        if failed or self.config.scheduler == "none":
            self.close(trial, boards.FAILED, "the process that drove it has died")
        else:
            when = f"at epoch {trial.epoch}" if trial.epoch else "so far"
            self.close(trial, boards.STOPPED, f"stopped early by ASHA: it was behind the best runs {when}")

    def end_runs(self) -> None:
        """Set the status of the runs that are interrupted with the sweep, and wait until every run's is set."""
        for trial in self.trials:
            if trial.state == boards.RUNNING and trial.session is not None:
                _end_session(trial, trial.session, "KILLED")
        for trial in self.trials:
            if trial.recording is not None:
                trial.recording.join()
        lost = [t for t in self.trials if t.state == boards.FAILED and t.session is None and not t.run_id]
        if lost:  # they have no MLflow run of their own to say why
            cells = [trial.described(self.config) for trial in self.trials]
            for trial in lost:
                cells[trial.index]["reason"] = trial.reason
            self.record.cells(cells)
        self.record.figures(self.figures())

    def end(self, status: str) -> None:
        """Set the status of the sweep."""
        if status != "FINISHED":
            command = f"cifar-ray sweep --resume {self.config.name}{uri.flag(self.record.uri)}"
            self.board.line(f"`{command}` continues the sweep")
        if not self.record.end(status):
            self.board.line(f"MLflow at {self.record.uri} does not take all of the sweep's own record")

    def figures(self) -> dict[str, float]:
        """Seconds by phase over all runs so far, wall time, concurrency, and the share of time outside training."""
        sums = {
            f"sweep/{phase}_s": sum((trial.times.get(f"time/{phase}_s", 0.0) for trial in self.trials), 0.0)
            for phase in PHASES
        }
        wall = time.time() - self.begun
        sums["sweep/wall_s"] = wall
        sums["sweep/concurrency"] = float(self.at_once)
        sums["sweep/share_outside_training"] = max(1 - sums["sweep/training_s"] / (wall * self.at_once), 0.0)
        return sums


def _end_session(trial: Trial, session: RunSession, status: str, reason: str = "") -> None:
    """Set a run's status in a thread: a store that does not answer delays neither the next run nor another's end."""
    trial.recording = threading.Thread(target=session.end, args=[status, reason])
    trial.recording.start()
