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

from cifar_ray.display.sweep import FAILED, RUNNING, WAITING, Shown
from cifar_ray.orchestration.run.driver import Start
from cifar_ray.orchestration.run.events import beside_driver
from cifar_ray.orchestration.run.limits import Spent

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
        figures: its latest figures, and those of its end; ``time/training_s`` is that of all drivers so far.
        stopped_by: the limit that has stopped it.
        is_lost: whether the cluster has lost the nodes that it needs; its state says whether it had begun.
        is_recorded: whether all is written that is to be written of it.
        has_run: whether MLflow has its run.
    """

    shown: Shown = field(default_factory=Shown)
    spent: Spent = field(default_factory=Spent)
    epoch: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
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
class Begin:
    """What a cell is to train.

    Attributes:
        row: how far earlier drivers have come.
        dataset: in Ray's object store.
        scheduler: what stops cells early, or ``none``.
        variables: of the driver's environment that its store and storage need.
    """

    start: Start
    row: Row
    dataset: ray.ObjectRef
    scheduler: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Word:
    """What the driver says to a cell.

    Attributes:
        begin: what to train, until it has begun.
        stop: why it is to stop, or not to begin: a limit of the sweep, :data:`INTERRUPTED` or
            :data:`~cifar_ray.display.sweep.SKIPPED`; empty while it may go on.
        is_released: whether Ray Tune may know that it has ended.
        is_behind: whether Ray Tune's scheduler has ended it.
    """

    begin: Begin | None = None
    stop: str = ""
    is_released: bool = False
    is_behind: bool = False


class _BoardActor:
    """Knows cells by their numbers."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._changed: set[int] = set()
        self._words: Mapping[int, Word] = {}
        self._usual, self._over = Word(), False
        self._behind: set[int] = set()

    def post(self, number: int, row: Row) -> Word:
        self._rows[number] = row
        self._changed.add(number)
        return replace(self._words.get(number, self._usual), is_behind=number in self._behind)

    def exchange(self, words: Mapping[int, Word], usual: Word, over: bool) -> dict[int, Row]:
        self._words, self._usual, self._over = words, usual, over
        changed, self._changed = self._changed, set()
        return {number: self._rows[number] for number in changed}

    def died(self, number: int) -> None:
        """The process of a cell has died."""
        row = self._rows.get(number, Row())
        if row.state in (WAITING, RUNNING):
            row = row.ended(FAILED, "the process that drove it has died")
        self.post(number, replace(row, is_recorded=True))

    def stopped(self, number: int) -> bool:
        """A cell's scheduler has ended it; whether that and all others are recorded."""
        self._behind.add(number)
        return all(row.is_recorded for row in self._rows.values())

    def over(self) -> bool:
        """Whether Ray Tune is to end."""
        return self._over


class SweepBoard:
    """The board, as the driver opens it on its own node; it ends with the driver. Ray restarts it when it is killed."""

    def __init__(self) -> None:
        self.actor = beside_driver(_BoardActor)
        self._asked: Any = None

    def exchange(self, words: Mapping[int, Word], usual: Word, over: bool) -> Mapping[int, Row]:
        """Give each cell its word, or the usual one, and say whether Ray Tune is to end; the rows that are new.

        There are none of a board that is away or slow; a slow one's answer comes with a later call.
        """
        self._asked = self._asked or self.actor.exchange.remote(words, usual, over)
        news: Mapping[int, Row] = {}
        try:
            news = ray.get(self._asked, timeout=_SLOW_S)
        except ray.exceptions.GetTimeoutError:
            return news
        except ray.exceptions.RayError:
            pass
        self._asked = None
        return news


class Link(threading.Thread):
    """A cell's side of the board: posts its row when it has changed, and now and then, and hears the driver's word."""

    def __init__(self, board: Any, number: int) -> None:
        """``board`` is the actor."""
        super().__init__(daemon=True, name="board-link")
        self.row, self.word = Row(), Word()
        self._posted = self.row
        self._board, self._number = board, number
        self._changed = threading.Condition()
        self.start()

    def change(self, **changes: Any) -> None:
        """Change fields of the row."""
        with self._changed:
            self.row = replace(self.row, **changes)
            self._changed.notify_all()

    def end(self, state: str, note: str) -> None:
        """The cell has ended, and all of it is recorded; wait until the board has that, as the process may end then."""
        self.change(shown=self.row.ended(state, note).shown, is_recorded=True)
        self.posted(lambda row: row.is_recorded)

    def posted(self, is_so: Callable[[Row], object]) -> None:
        """Wait until the board has such a row."""
        with self._changed:
            self._changed.wait_for(lambda: is_so(self._posted))

    def wait_for(self, is_so: Callable[[Word], object]) -> Word:
        """Wait until the driver's word is such."""
        with self._changed:
            self._changed.wait_for(lambda: is_so(self.word))
            return self.word

    def run(self) -> None:
        while not (self._posted.is_recorded and self.word.is_released):
            row = self.row
            with suppress(ray.exceptions.RayError, TimeoutError):  # the board restarts
                word = ray.get(self._board.post.remote(self._number, row), timeout=_ANSWER_S)
                with self._changed:
                    self.word, self._posted = word, row
                    self._changed.notify_all()
            time.sleep(_LEAST_S)
            if row.state != WAITING:  # else it waits for its cell
                with self._changed:
                    self._changed.wait_for(lambda: self.row is not row, _POST_S)  # noqa: B023
