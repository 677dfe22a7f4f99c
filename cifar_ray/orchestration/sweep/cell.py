"""A cell of a sweep in a trial of Ray Tune's: the training of a run, which shows on the sweep's board."""

from __future__ import annotations

import os
import queue
import signal
import time
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import ray
import ray.tune

from cifar_ray import data, tasks, tracking
from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError, InterruptedRunError, RunFailedError
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import CellView
from cifar_ray.orchestration.cluster.allocation import TooSmallError
from cifar_ray.orchestration.run.driver import Training
from cifar_ray.orchestration.run.events import Mailbox, open_mailbox
from cifar_ray.orchestration.run.limits import Limit, Spent, of_run
from cifar_ray.orchestration.run.listeners import Callback
from cifar_ray.orchestration.run.restarts import Halt
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.sweep.board import INTERRUPTED, Begin, Link
from cifar_ray.tracking.background import background
from cifar_ray.tracking.study import STOPPED_TAG
from cifar_ray.training.observer import EpochRecord, Launch, Outcome

CELL = "cell"
"""What Ray Tune gives a trial: the number of its cell."""

_END_S = 600.0  # for what is still to be recorded; Ray Tune waits as long


class CellTrainable(ray.tune.Trainable):
    """Ray Tune's trainable: train one cell.

    A class and not a function, because Ray Tune waits for ``cleanup`` before it ends the process: a run that is to
    stop does so between two steps, with a checkpoint and a true record.
    """

    def setup(self, config: dict[str, Any], board: Any) -> None:
        """Begin the cell whose number ``config`` has; the driver says what to train, through the board's actor."""
        self._board = board
        self._ending: list[Future[None]] = []
        self._mailboxes: list[Mailbox] = []
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another cell in the same process; of the one before, something may still be recorded."""
        self._cell = _Cell(Link(self._board, new_config[CELL]))
        self._ending.append(background(partial(self._drive, self._cell), "cell"))
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the figures of an epoch that a scheduler is to hear of, or for the end."""
        result = self._cell.results.get()
        if result.get("done"):
            self._cell.link.wait_for(lambda word: word.is_released)
        return result

    def cleanup(self) -> None:
        """Stop the run, if it has not ended, and wait until all is recorded."""
        self._cell.is_stopped = True
        wait(self._ending, _END_S)

    def _drive(self, cell: _Cell) -> None:
        word = cell.link.wait_for(lambda word: word.begin or word.stop)
        if word.begin is None:
            cell.finish(boards.SKIPPED, "")
            return
        try:
            cell.train(word.begin, self._mailboxes)
        except Exception as error:  # the sweep goes on and says why
            cell.finish(boards.FAILED, f"{type(error).__name__}: {error}")


class _Cell(Callback):
    """One cell in its process.

    Attributes:
        is_stopped: whether Ray Tune has ended it.
        results: for Ray Tune.
    """

    def __init__(self, link: Link) -> None:
        self.link, self.is_stopped = link, False
        self.results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def train(self, begin: Begin, mailboxes: list[Mailbox]) -> None:
        """Train to the end, whatever it is, and record it; ``mailboxes`` are those that earlier runs have emptied."""
        self._mailboxes, self._mailbox = mailboxes, mailboxes.pop() if mailboxes else open_mailbox()
        launch = Launch(time.time(), 0.0)
        self._config, self._facts, self._scheduler = begin.start.config, begin.start.decided.facts, begin.scheduler
        self._own: Limit = of_run(self._config)
        self.link.change(**vars(begin.row))
        view = self._view = CellView(lambda shown: self.link.change(shown=shown), begin.row.shown)
        view.change(state=boards.RUNNING, note="starting the workers")
        os.environ.update(begin.variables)  # MLflow's settings among them
        tracking.quieten(self._config.verbose)
        data.keep(self._config, self._facts)
        training = self._training = Training(begin.start, view, ray.get(begin.dataset), launch, begin.dataset)
        state, note = boards.FAILED, ""
        try:
            training.run(self._check, [self], self._limit, self._mailbox, self._ended, self._interrupted)
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

    def finish(self, state: str, note: str) -> None:
        """Tell the driver, and Ray Tune if it does not know yet. Schedulers count nothing of epoch 0."""
        self.link.end(state, note)
        self.results.put({"epoch": 0, "done": True})

    def epoch(self, record: EpochRecord) -> None:
        row = record.row
        trained = self.link.row.figures.get("time/training_s", 0.0) + row.metrics["epoch_s"]
        self.link.change(epoch=row.step, figures={**row.metrics, "time/training_s": trained})
        if self._scheduler != "none" and row.step < self._config.epochs:
            self.results.put({"epoch": row.step, **row.metrics})

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
        if isinstance(outcome, Halt):
            epochs, state, note = 0, boards.STOPPED, f"stopped by {limits.named(outcome.by)}"
            self.link.change(stopped_by=outcome.by)
        else:
            epochs, state, task = self._config.epochs, boards.FINISHED, tasks.spec(self._config, self._facts)
            note = boards.result(task, outcome.metrics[task.primary.result(outcome.metrics)], outcome.times)
            if by := outcome.stopped_by:
                note += f", stopped by {limits.named(by)} after epoch {outcome.epochs}"
            self.link.change(figures={**outcome.metrics, **outcome.times})
        assert self._training.session is not None
        self.link.change(spent=self._training.session.spent)
        self._mailboxes.append(self._mailbox)  # one whose run has failed may have events left
        self._view.change(state=state, note=note)
        self.link.posted(lambda row: row.state == state)  # the next cell's budget is judged by it
        self.results.put({"epoch": epochs, **self.link.row.figures, "done": True})

    def _interrupted(self, session: RunSession) -> str:
        """Why the run has ended: of one that Ray Tune has stopped without a word of the driver's, its scheduler."""
        if self.link.word.stop:
            return ""
        session.record.tags({STOPPED_TAG: self._scheduler})
        return self._behind

    @property
    def _behind(self) -> str:
        when = f"at epoch {self.link.row.epoch}" if self.link.row.epoch else "so far"
        return f"stopped early by {self._scheduler.upper()}: it was behind the best runs {when}"
