"""A cell of a sweep in a trial of Ray Tune's: the training of a run, which shows on the sweep's board."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import ray
import ray.tune

from cifar_ray import data, tasks, tracking
from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import CellView
from cifar_ray.orchestration.cluster.allocation import TooSmallError
from cifar_ray.orchestration.run.driver import Start, Training
from cifar_ray.orchestration.run.events import Mailbox, open_mailbox
from cifar_ray.orchestration.run.limits import Limit, Spent, of_run
from cifar_ray.orchestration.run.listeners import Callback
from cifar_ray.orchestration.run.restarts import Halt
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.sweep.board import INTERRUPTED, BoardHandle, CellSpec, Link
from cifar_ray.tracking.background import background
from cifar_ray.tracking.study import STOPPED_TAG
from cifar_ray.training.observer import EpochRecord, Launch, Outcome

_END_S = 600.0  # for what is still to be recorded; Ray Tune waits as long


def dataset_key(config: ResolvedConfig, digest: str) -> str:
    """By what a sweep knows a data set: others may have the same samples with other facts."""
    return f"{config.dataset} {digest}"


class CellTrainable(ray.tune.Trainable):
    """Ray Tune's trainable: train one cell.

    A class and not a function, because Ray Tune waits for ``cleanup`` before it ends the process: a run that is to
    stop does so between two steps, with a checkpoint and a true record.
    """

    def setup(self, config: dict[str, Any], datasets: Mapping[str, ray.ObjectRef], board: BoardHandle) -> None:
        """Begin a cell: the driver says which, by what Ray Tune gives as ``config``.

        Args:
            config: the cell's name, or the values that were proposed for one.
            datasets: by their keys, in Ray's object store.
            board: carries the driver's words here, and the cell's rows back.
        """
        self._datasets, self._board = datasets, board
        self._ending: list[Future[None]] = []
        self._mailbox: Mailbox | None = None
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another cell in the same process; of the one before, something may still be recorded."""
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._cell = _Cell(Link(self._board, self.trial_id, new_config), self._results)
        self._ending.append(background(partial(self._drive, self._cell), "cell"))
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the figures of an epoch that a scheduler is to hear of, or for the end."""
        result = self._results.get()
        if result.get("done"):
            self._cell.link.wait_for(lambda word: word.is_released)
        return result

    def cleanup(self) -> None:
        """Stop the run, if it has not ended, and wait until all is recorded."""
        self._cell.is_stopped = True
        wait(self._ending, _END_S)

    def _drive(self, cell: _Cell) -> None:
        word = cell.link.wait_for(lambda word: word.begin or word.skip or word.stop)
        if word.begin is None:
            cell.finish(boards.SKIPPED, "", word.figures)
            return
        mailbox, self._mailbox = self._mailbox or open_mailbox(), None
        try:
            cell.train(word.begin, self._datasets, mailbox)
            self._mailbox = mailbox  # one whose run has failed may have events left
        except Exception as error:  # the sweep goes on and says why
            cell.finish(boards.FAILED, f"{type(error).__name__}: {error}")


class _Cell(Callback):
    """One cell in its process.

    Attributes:
        is_stopped: whether Ray Tune has ended it.
    """

    def __init__(self, link: Link, results: queue.SimpleQueue[dict[str, Any]]) -> None:
        self.link, self.is_stopped = link, False
        self._results = results

    def train(self, spec: CellSpec, datasets: Mapping[str, ray.ObjectRef], mailbox: Mailbox) -> None:
        """Train to the end, whatever it is, and record it."""
        begun = time.time()
        self._spec = spec
        config, facts = spec.config, spec.decided.facts
        self._own: Limit = of_run(config)
        self.link.change(**vars(spec.row))
        view = self._view = CellView(lambda shown: self.link.change(shown=shown), spec.row.shown)
        view.change(state=boards.RUNNING, note="starting the workers")
        os.environ.update(spec.variables)
        tracking.quieten(config.verbose)
        data.keep(config, facts)
        shared = datasets[dataset_key(config, facts.digest)]
        dataset: Dataset = ray.get(shared)
        start = Start(
            config,
            spec.decided,
            spec.folder,
            spec.store,
            dataset,
            Launch(begun, 0.0),
            spec.name,
            shared=shared,
            tags=spec.tags,
            experiment=spec.experiment,
        )
        training, state, note = Training(start, view), boards.FAILED, ""
        try:
            with tracking.settings():
                training.run(self._check, [self], self._limit, mailbox, self._ended, self._interrupted)
            state, note = self.link.row.state, self.link.row.shown.note
        except TooSmallError as error:
            self.link.change(is_lost=True)
            state, note = boards.WAITING, str(error)
        except InterruptedRunError:
            state = boards.WAITING
            if not self.link.word.stop:
                state, note = boards.STOPPED, self._behind
        except (RunFailedError, ConfigError) as error:
            note = str(error)
        except Exception as error:
            note = f"{type(error).__name__}: {error}"
        if training.session is not None:
            self.link.change(spent=training.session.spent, has_run=bool(training.session.record.run_id))
            if state in (boards.FINISHED, boards.STOPPED) and not training.session.is_recorded:
                state, note = boards.FAILED, "MLflow does not take its record"
        self.finish(state, note)

    def finish(self, state: str, note: str, figures: Mapping[str, float] | None = None) -> None:
        """Tell the driver, and Ray Tune if it does not know yet. Schedulers count nothing of epoch 0."""
        self.link.end(state, note)
        self._results.put({"epoch": 0, **(figures or {}), "done": True})

    def epoch(self, record: EpochRecord) -> None:
        row, before = record.row, self.link.row.times
        trained = before.get("time/training_s", 0.0) + row.metrics["epoch_s"]
        self.link.change(epoch=row.step, figures=row.metrics, times={**before, "time/training_s": trained})
        if self._spec.scheduler != "none" and row.step < self._spec.config.epochs:
            self._results.put({"epoch": row.step, **row.metrics})

    def _check(self, can_stop: bool = False) -> bool:
        asked = self.is_stopped or self.link.word.is_behind or self.link.word.stop == INTERRUPTED
        if asked and not can_stop:
            raise InterruptedRunError(signal.SIGTERM)
        return asked

    def _limit(self, spent: Spent) -> str:
        """The limit that is reached: its own, or one of the sweep, of which the driver tells."""
        self.link.change(spent=spent)
        stop = self.link.word.stop
        return limits.of_sweep(stop) if stop not in ("", INTERRUPTED) else self._own(spent)

    def _ended(self, outcome: Outcome | Halt) -> None:
        """Give the result to Ray Tune before it is recorded, which must not keep another cell waiting."""
        if isinstance(outcome, Outcome):
            self.link.change(figures={**outcome.metrics, **outcome.times}, times=outcome.times)
        epoch = self._spec.config.epochs if isinstance(outcome, Outcome) else 0
        self._results.put({"epoch": epoch, **self.link.row.figures, "done": True})
        state, note = self._words(outcome)
        self._view.change(state=state, note=note)

    def _interrupted(self, session: RunSession) -> str:
        """Why the run has ended: of one that Ray Tune has stopped without a word of the driver's, its scheduler."""
        if self.link.word.stop:
            return ""
        session.record.tags({STOPPED_TAG: self._spec.scheduler})
        return self._behind

    @property
    def _behind(self) -> str:
        epoch = self.link.row.epoch
        when = f"at epoch {epoch}" if epoch else "so far"
        return f"stopped early by {self._spec.scheduler.upper()}: it was behind the best runs {when}"

    def _words(self, outcome: Outcome | Halt) -> tuple[str, str]:
        if isinstance(outcome, Halt):
            self.link.change(stopped_by=outcome.by)
            return boards.STOPPED, f"stopped by {limits.named(outcome.by)}"
        task = tasks.spec(self._spec.config, self._spec.decided.facts)
        note = boards.result(task, outcome.metrics[task.primary.result(outcome.metrics)], outcome.times)
        if by := outcome.stopped_by:
            note += f", stopped by {limits.named(by)} after epoch {outcome.epochs}"
        return boards.FINISHED, note
