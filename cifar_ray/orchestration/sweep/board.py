"""The board of a sweep: an actor between the driver and the processes of its cells.

It holds the latest row of each cell, from the cell, and the latest word to it, from the driver; there is no queue. Both
sides give theirs again and again, so that a board whose process was killed is complete again within a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display.sweep import FAILED, RUNNING, WAITING, Shown
from cifar_ray.orchestration.run.events import beside_driver
from cifar_ray.orchestration.run.limits import Spent
from cifar_ray.runs.folder import RunFolder

INTERRUPTED = "interrupted"
"""Why cells are to stop, beside the limits of ``config.limits``: the driver has a signal, or has failed."""

_ANSWER_S, _SLOW_S, _POST_S, _LEAST_S = 30.0, 5.0, 0.5, 0.1


@dataclass(frozen=True)
class Row:
    """How far a cell is.

    Attributes:
        shown: what the display shows of it, its state among that.
        spent: what it has used so far, over all drivers.
        epoch: the last one.
        figures: its latest figures; once it has finished, also those of its end, times among them.
        times: seconds by phase as far as they are known, over all drivers.
        stopped_by: the limit that has stopped it.
        is_lost: whether the cluster has lost the nodes that it needs; its state says whether it had begun.
        is_recorded: whether all is written that is to be written of it.
        has_run: whether MLflow has its run.
    """

    shown: Shown = field(default_factory=Shown)
    spent: Spent = field(default_factory=Spent)
    epoch: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    stopped_by: str = ""
    is_lost: bool = False
    is_recorded: bool = False
    has_run: bool = False

    @property
    def state(self) -> str:
        return self.shown.state

    def ended(self, state: str, note: str) -> Row:
        """It with this state and why, or its result."""
        return replace(self, shown=replace(self.shown, state=state, note=note))


@dataclass(frozen=True)
class CellSpec:
    """What a cell is to train: a resolved config, and all that it leaves open but the nodes.

    Attributes:
        row: how far earlier drivers have come.
        name: in MLflow.
        store: the tracking URI.
        tags: of its run in MLflow that make it the sweep's.
        experiment: id of the experiment.
        scheduler: what stops cells early, or ``none``.
        variables: of the driver's environment that its store and storage need.
    """

    config: ResolvedConfig
    decided: Decided
    folder: RunFolder
    row: Row
    name: str
    store: str
    tags: Mapping[str, str]
    experiment: str
    scheduler: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Word:
    """What the driver says to a cell.

    Attributes:
        begin: what to train, until it has begun.
        skip: whether it is not to train at all, if it has not begun.
        figures: with ``skip``, what Ray Tune gets as its result.
        stop: why it is to stop, a limit of the sweep or :data:`INTERRUPTED`; empty while it may go on.
        is_released: whether Ray Tune may know that it has ended.
        is_behind: whether Ray Tune's scheduler has ended it.
    """

    begin: CellSpec | None = None
    skip: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    stop: str = ""
    is_released: bool = False
    is_behind: bool = False


News = Mapping[str, tuple[Mapping[str, Any], Row]]
"""Key of a trial -> what it has of Ray Tune, and its row, where that is new."""


class _BoardActor:
    def __init__(self) -> None:
        self._rows: dict[str, tuple[Mapping[str, Any], Row]] = {}
        self._changed: set[str] = set()
        self._words: Mapping[str, Word] = {}
        self._usual, self._over = Word(), False
        self._behind: set[str] = set()

    def post(self, key: str, asked: Mapping[str, Any], row: Row) -> Word:
        self._rows[key] = asked, row
        self._changed.add(key)
        return replace(self._words.get(key, self._usual), is_behind=key in self._behind)

    def exchange(self, words: Mapping[str, Word], usual: Word, over: bool) -> News:
        self._words, self._usual, self._over = words, usual, over
        changed, self._changed = self._changed, set()
        return {key: self._rows[key] for key in changed}

    def died(self, key: str, asked: Mapping[str, Any]) -> None:
        _, row = self._rows.get(key, (asked, Row()))
        if row.state in (WAITING, RUNNING):
            row = row.ended(FAILED, "the process that drove it has died")
        self.post(key, asked, replace(row, is_recorded=True))

    def stopped(self, key: str) -> bool:
        self._behind.add(key)
        return all(row.is_recorded for _, row in self._rows.values())

    def over(self) -> bool:
        return self._over


@dataclass(frozen=True)
class BoardHandle:
    """The board as its driver, its cells and Ray Tune's callbacks have it."""

    actor: Any

    def died(self, key: str, asked: Mapping[str, Any]) -> None:
        """The process of a trial, which has ``asked`` of Ray Tune, has died."""
        self.actor.died.remote(key, asked)

    def stopped(self, key: str) -> bool:
        """A cell's scheduler has ended it; whether that and all others are recorded."""
        return _answer(self.actor.stopped.remote(key))

    def over(self) -> bool:
        """Whether Ray Tune is to end; a board that does not answer lets it go on."""
        return _answer(self.actor.over.remote())


def _answer(asked: Any) -> bool:
    with suppress(ray.exceptions.RayError, TimeoutError):
        return bool(ray.get(asked, timeout=_ANSWER_S))
    return False


class SweepBoard:
    """The board, as the driver opens it on its own node; it ends with the driver. Ray restarts it when it is killed.

    Attributes:
        handle: for the others.
    """

    def __init__(self) -> None:
        self.handle = BoardHandle(beside_driver(_BoardActor))
        self._asked: Any = None

    def exchange(self, words: Mapping[str, Word], usual: Word, over: bool) -> News:
        """Give each cell a word, or the usual one; what is new, or nothing of a board that has died or is slow.

        A slow one's answer comes with a later call.

        Args:
            words: by Ray Tune's id of the cell's trial.
            usual: for all others.
            over: whether Ray Tune is to end.
        """
        self._asked = self._asked or self.handle.actor.exchange.remote(words, usual, over)
        news: News = {}
        try:
            news = ray.get(self._asked, timeout=_SLOW_S)
        except ray.exceptions.GetTimeoutError:
            return news
        except ray.exceptions.RayError:
            pass
        self._asked = None
        return news


class Link(threading.Thread):
    """A cell's side of the board: posts its row when it has changed, and now and then, and hears the driver's word.

    Attributes:
        row: the latest one.
        word: the latest one.
    """

    def __init__(self, board: BoardHandle, key: str, asked: Mapping[str, Any]) -> None:
        super().__init__(daemon=True, name="board-link")
        self.row, self.word = Row(), Word()
        self._posted = self.row
        self._board, self._key, self._asked = board, key, asked
        self._changed, self._heard = threading.Event(), threading.Condition()
        self._lock = threading.Lock()
        self.start()

    def change(self, **changes: Any) -> None:
        """Change fields of the row."""
        with self._lock:
            self.row = replace(self.row, **changes)
        self._changed.set()

    def end(self, state: str, note: str) -> None:
        """The cell has ended, and all of it is recorded; wait until the board has that, as the process may end then."""
        with self._lock:
            self.row = replace(self.row.ended(state, note), is_recorded=True)
        self._changed.set()
        with self._heard:
            self._heard.wait_for(lambda: self._posted.is_recorded)

    def wait_for(self, is_so: Callable[[Word], object]) -> Word:
        """Wait until the driver's word is such."""
        with self._heard:
            self._heard.wait_for(lambda: is_so(self.word))
            return self.word

    def run(self) -> None:
        while True:
            self._changed.wait(_POST_S if self.row.state != WAITING else _LEAST_S)  # it waits for its cell
            self._changed.clear()
            row = self.row
            try:
                word = ray.get(self._board.actor.post.remote(self._key, self._asked, row), timeout=_ANSWER_S)
            except (ray.exceptions.RayError, TimeoutError):  # the board restarts
                continue
            with self._heard:
                self.word, self._posted = word, row
                self._heard.notify_all()
            if row.is_recorded and word.is_released:
                return
            time.sleep(_LEAST_S)
