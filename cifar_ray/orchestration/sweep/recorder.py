"""Display and record the events of a sweep's runs, and set the final status of each and of the sweep."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial, singledispatchmethod
from typing import Any

from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError, counted
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.data import Dataset
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.run.limits import Spent
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.sweep.limits import Budget, expect
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.trial import (
    BY_SWEEP,
    TrialEvent,
    TrialFinished,
    TrialStarted,
    TrialTooLarge,
    dataset_key,
)
from cifar_ray.tracking import store, uri
from cifar_ray.tracking.background import background
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.store import Client
from cifar_ray.tracking.study import MEASURE_TAG, STOPPED_TAG
from cifar_ray.training.observer import EpochRecord
from cifar_ray.training.rank_times import PHASES

_STORE_PATIENCE_S, _STORE_PAUSE_S = 30.0, 1.0
_TAKE_S, _LAST_TAKE_S, _POLL_S = 5.0, 30.0, 0.1
_FIGURES_EVERY_S = 60.0


@dataclass(frozen=True)
class _Ended:
    """Ray Tune has ended a trial, with an error if ``failed``."""

    failed: bool


@dataclass
class SweepRecorder:
    """Displays and records the runs of one sweep.

    A run's own record is opened in a thread: until MLflow has it, the run trains, and its events are held.

    Attributes:
        trials: all of its trials, by index.
        record: the sweep's own MLflow run.
        datasets: data sets by their keys.
        begun: ``time.time()`` from which wall time is counted.
        at_once: trials at a time.
        too_large: index of a trial -> why it has not begun: the cluster has lost nodes. Such trials stay waiting.
    """

    config: SweepConfig
    trials: Sequence[PlannedTrial]
    board: Board
    client: Client
    record: SweepRecord
    datasets: Mapping[str, Dataset]
    begun: float
    at_once: int
    budget: Budget
    too_large: dict[int, str] = field(default_factory=dict)
    _limited: int = 0
    _left_out: queue.SimpleQueue[PlannedTrial] = field(default_factory=queue.SimpleQueue)
    _looked: float = field(default_factory=time.monotonic)
    _figures_at: float = field(default_factory=time.monotonic)
    _away: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    def handle(self, message: TrialEvent) -> None:
        """Display and record one event of a trial; a stopped one may still have some on their way."""
        trial = self.trials[message.index]
        if isinstance(message.event, Spent):
            trial.spent = message.event
        elif isinstance(message.event, TrialFinished | TrialTooLarge | _Ended):
            trial.reported = True
            trial.completed = trial.completed or getattr(message.event, "outcome", None) is not None
        if trial.opening is not None:
            trial.held.append(message.event)
        elif message.index not in self.too_large and trial.state in (boards.WAITING, boards.RUNNING):
            self._on(message.event, trial)

    @singledispatchmethod
    def _on(self, event: Any, trial: PlannedTrial) -> None:
        if trial.session is not None:
            trial.session.handle(event)

    @_on.register
    def _(self, event: EpochRecord, trial: PlannedTrial) -> None:
        trial.epoch, trial.figures = event.row.step, event.row.metrics
        before = trial.times.get("time/training_s", 0.0)  # all that is known of a run that fails or is stopped
        trial.times = {**trial.times, "time/training_s": before + event.row.metrics["epoch_s"]}
        if trial.session is not None:
            trial.session.handle(event)

    @_on.register
    def _(self, event: TrialStarted, trial: PlannedTrial) -> None:
        self.board.begin(trial.index)
        trial.state = boards.RUNNING
        if trial.session is None:
            trial.opening = background(partial(self._open_record, trial, event.at), "open-record")

    @_on.register
    def _(self, event: TrialFinished, trial: PlannedTrial) -> None:
        if event.stopped_by:
            by = event.stopped_by
            if by == BY_SWEEP:
                by = limits.of_sweep(self.budget.reached)
                self._limited += 1
            self.close(trial, boards.STOPPED, f"stopped by {limits.named(by)}", by)
            return
        if event.outcome is None:
            self.close(trial, boards.FAILED, event.reason)
            return
        trial.outcome, trial.times = event.outcome, event.outcome.times
        trial.figures = {**event.outcome.metrics, **event.outcome.times}
        metrics = event.outcome.metrics
        note = trial.result(metrics[trial.task.primary.result(metrics)])
        if by := event.outcome.stopped_by:
            note += f", stopped by {limits.named(by)} after epoch {event.outcome.epochs}"
        self.close(trial, boards.FINISHED, note)

    @_on.register
    def _(self, event: TrialTooLarge, trial: PlannedTrial) -> None:
        if not self.too_large:
            self.board.line(f"the cluster has lost nodes ({event.reason}); runs that still fit go on")
        if trial.state == boards.WAITING:
            self.too_large[trial.index] = event.reason
        else:
            self.close(trial, boards.FAILED, event.reason)

    @_on.register
    def _(self, event: _Ended, trial: PlannedTrial) -> None:
        if event.failed or self.config.scheduler == "none" or trial.repeats:
            self.close(trial, boards.FAILED, "the process that drove it has died")
        else:
            when = f"at epoch {trial.epoch}" if trial.epoch else "so far"
            self.close(trial, boards.STOPPED, f"stopped early by ASHA: it was behind the best runs {when}")

    def _open_record(self, trial: PlannedTrial, begun: float) -> RunRecord | None:
        """The trial's run in MLflow, as soon as the store answers; None when the sweep has ended before."""
        while not self._over.is_set():
            try:
                record = self._record_of(trial, begun)
            except ConfigError as error:
                self._away = store.reason(error)
                self._over.wait(_STORE_PAUSE_S)
            else:
                self._away = ""
                return record
        return None

    def _take_up(self, trial: PlannedTrial, opening: Future[RunRecord | None]) -> None:
        """Once MLflow has the trial's run, display and record what has happened meanwhile."""
        if not opening.done():
            if self._away:
                self.board.rows[trial.index].doing("training; MLflow does not answer")
                self.board.line_once(f"MLflow does not answer ({self._away}); training goes on, and keeps trying")
            return
        record = opening.result()
        assert record is not None
        assert trial.config is not None
        assert trial.folder is not None
        dataset, view = self.datasets[dataset_key(trial.config, trial.decided)], self.board.rows[trial.index]
        run = (trial.config, trial.decided, dataset, trial.folder)
        trial.session = RunSession(*run, record, view, trial.unused_gpus)
        trial.opening, held, trial.held = None, trial.held, []
        for event in held:
            self.handle(TrialEvent(trial.index, event))

    def _record_of(self, trial: PlannedTrial, begun: float) -> RunRecord:
        assert trial.config is not None
        assert trial.folder is not None
        tags = {**self.record.child_tags, store.SWEEP_TAG: self.config.name, MEASURE_TAG: self.config.measure}
        dataset, folder = self.datasets[dataset_key(trial.config, trial.decided)], trial.folder
        return RunRecord.open(
            self.client,
            trial.config,
            trial.decided,
            name=trial.cell.name,
            key=folder.key,
            folder=folder.address,
            dataset=dataset,
            begun=begun,
            tags=tags,
            experiment=self.record.experiment_id,
        )

    @property
    def left(self) -> int:
        """How many runs the limits have stopped, have not started, or have left to be proposed."""
        return self._limited + sum(trial.is_open for trial in self.trials)

    def admit(self, index: int | None) -> bool | None:
        """Whether a trial, or any, is to start; None until it is known what others have taken. For Tune's thread."""
        if sum(trial.admitted and not trial.reported for trial in self.trials) >= self.at_once:
            return None  # Ray Tune knows sooner that a trial has ended
        if index is None:
            return not self.budget.reached
        trial = self.trials[index]
        if reason := self.budget.refusal(trial):
            trial.state, trial.reason = boards.SKIPPED, reason
            self._left_out.put(trial)
        else:
            trial.admitted = True
        return trial.admitted

    def close(self, trial: PlannedTrial, state: str, note: str, stopped_by: str = "") -> None:
        """Display and record a run's end; ``note`` is its result, or why it has none, ``stopped_by`` its limit."""
        trial.state, trial.reason = state, "" if state == boards.FINISHED else note
        self.expect(trial)
        self.board.end(trial.index, state, note)
        if trial.session is not None:
            if trial.outcome is not None:
                trial.session.finish(trial.outcome)
            if stopped_by:
                trial.session.halt(stopped_by)
            elif state == boards.STOPPED:
                trial.session.record.tags({STOPPED_TAG: self.config.scheduler})
            status = {boards.FINISHED: "FINISHED", boards.FAILED: "FAILED"}.get(state, "KILLED")
            if stopped_by:
                _end_session(trial, trial.session, "FINISHED")
            else:
                _end_session(trial, trial.session, status, trial.reason)
        self.record.figures(self.figures())

    def expect(self, ended: PlannedTrial | None = None) -> None:
        """Have the board know what each run that is to end yet is expected to take, as far as finished ones tell."""
        expect(self.trials, self.board.rows, ended)

    def catch_up(self, mailbox: Mailbox, ended: Sequence[tuple[int, bool]]) -> None:
        """Handle new events, and close trials that Ray Tune has ended, some with an error, before they reported it."""
        now = time.monotonic()
        self.budget.passed(now - self._looked)
        self._looked, self.board.usd = now, self.budget.usd
        if now - self._figures_at >= _FIGURES_EVERY_S:  # a driver that is killed has then forgotten a minute at most
            self._figures_at = now
            self.record.figures(self.figures())
        while not self._left_out.empty():
            trial = self._left_out.get()
            self.board.skip(trial.index, trial.reason)
            self._limited += 1
        for event in mailbox.take(_TAKE_S):
            self.handle(event)
        if ended:  # the events above may have been taken before these trials ended
            for event in mailbox.take(_LAST_TAKE_S):
                self.handle(event)
        for index, failed in ended:
            self.handle(TrialEvent(index, _Ended(failed)))
        for trial in self.trials:
            if trial.opening is not None:
                self._take_up(trial, trial.opening)

    def settle(self, check: Callable[[], object]) -> None:
        """Wait a while for a store that is away, and close the runs that it does not have by then."""
        end = time.monotonic() + _STORE_PATIENCE_S
        while late := [trial for trial in self.trials if trial.opening is not None]:
            for trial in late:
                assert trial.opening is not None
                self._take_up(trial, trial.opening)
                if trial.opening is not None and time.monotonic() >= end:
                    trial.opening = None
                    reasons = [
                        event.reason for event in trial.held if isinstance(event, TrialFinished) and event.reason
                    ]
                    self.close(trial, boards.FAILED, *reasons or [f"MLflow has no record of it ({self._away})"])
            check()
            time.sleep(_POLL_S)

    def end_runs(self) -> None:
        """Set the status of the runs that are interrupted with the sweep, and wait until every run's is set."""
        self._over.set()
        for trial in self.trials:
            if trial.opening is not None:  # MLflow may have the run by now
                wait([trial.opening], _STORE_PAUSE_S)
                if trial.opening.done() and not trial.opening.exception() and trial.opening.result():
                    self._take_up(trial, trial.opening)
            if trial.state in (boards.RUNNING, boards.WAITING) and trial.session is not None:
                _end_session(trial, trial.session, "KILLED")
        for trial in self.trials:
            if trial.recording is not None:
                trial.recording.join()
        kept = [trial.run_id or (trial.session and trial.session.record.run_id) for trial in self.trials]
        lost = [trial for trial, run_id in zip(self.trials, kept) if trial.state == boards.FAILED and not run_id]
        left_out = any(trial.state == boards.SKIPPED and trial.config for trial in self.trials)
        if lost or left_out:  # they have no MLflow run of their own to say why
            cells = [trial.described(self.config) for trial in self.trials]
            for trial in lost:
                cells[trial.index]["reason"] = trial.reason
            self.record.cells(cells)
        self.record.figures(self.figures())

    def end(self, status: str) -> None:
        if status != "FINISHED":
            command = f"cifar-ray sweep --resume {self.config.name}{uri.flag(self.record.uri)}"
            self.board.line(f"`{command}` continues the sweep")
        elif self.left:
            self.board.line(
                f"the limits have left {counted(self.left, 'run')}; "
                f"`cifar-ray sweep --resume {self.config.name}{uri.flag(self.record.uri)}` with a larger one goes on"
            )
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
        sums["sweep/placed_s"] = self.budget.placed_s
        if (usd := self.budget.usd) is not None:
            sums["cost/usd"] = usd
        sums["sweep/concurrency"] = float(self.at_once)
        sums["sweep/share_outside_training"] = max(1 - sums["sweep/training_s"] / (wall * self.at_once), 0.0)
        return sums


def _end_session(trial: PlannedTrial, session: RunSession, status: str, reason: str = "") -> None:
    """Set a run's status in a thread: a store that does not answer delays neither the next run nor another's end."""
    trial.recording = threading.Thread(target=session.end, args=[status, reason])
    trial.recording.start()
