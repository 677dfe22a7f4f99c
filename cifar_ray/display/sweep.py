"""The display of a sweep: a live table of its runs in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cifar_ray.config.errors import printable
from cifar_ray.config.limits import dollars, duration
from cifar_ray.display.terminal import Display, View
from cifar_ray.tasks import TaskSpec

WAITING, RUNNING, FINISHED, FAILED, STOPPED, SKIPPED = "waiting", "running", "finished", "failed", "stopped", "skipped"
_MOST_ROWS = 30
_MARKS = {WAITING: "·", RUNNING: "▶", FINISHED: "✓", FAILED: "✗", STOPPED: "■", SKIPPED: "–"}


class Row(View):
    """One run on the board.

    Attributes:
        state: ``waiting``, ``running``, ``finished``, ``failed``, ``stopped`` (by the scheduler or a limit), or
            ``skipped``.
        note: what it is doing, or its result.
        share: fraction that is done, from 0 to 1.
        begun: ``time.monotonic()`` when it began; 0 before.
        took_s: seconds that it took; None before its end.
        resumed: whether an earlier driver did a part of it, so that its time is no estimate for others.
        has_room: False while it waits for room in the cluster.
        expected_s: seconds that it is expected to take from its beginning; None when only other runs' times tell.
    """

    def __init__(self, board: Board, name: str) -> None:
        super().__init__()
        self._board, self.name = board, name
        self.state, self.note, self.share, self.begun = WAITING, "", 0.0, 0.0
        self.took_s: float | None = None
        self.expected_s: float | None = None
        self.resumed, self.has_room = False, True

    def line(self, text: str) -> None:
        self._board.line(f"{self.name}: {text}")

    def doing(self, text: str) -> None:
        self.note, self.has_room = text, True

    def no_room(self, seconds: float) -> None:
        if self.has_room and not self._board.is_live:
            self.line("waiting for room in the cluster")
        super().no_room(seconds)
        self.has_room = False

    def started(self, text: str) -> None:
        self._board.line_once(text)

    def training(self, task: TaskSpec, epochs: int, steps_per_epoch: int, step: int) -> None:
        super().training(task, epochs, steps_per_epoch, step)
        self.share, self.resumed = step / self._steps, step > 0
        self.doing("training")

    def show_step(self, step: int, epoch: str, figures: str) -> None:
        self.share, self.note = step / self._steps, f"{epoch}, {figures}"

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        if not self._board.is_live:
            super().epoch(number, metrics)


class Board(Display):
    """Displays a sweep on standard output."""

    def __init__(self, names: Sequence[str], begun: float) -> None:
        """Show the runs of these names; the clock counts from ``begun``, a ``time.time()``, through all drivers.

        ``usd`` is what all runs have cost so far; None without a price.
        """
        super().__init__()
        self.rows = [Row(self, name) for name in names]
        self._at_once = 1
        self._begun = begun
        self._doing = ""
        self._said: set[str] = set()
        self.usd: float | None = None
        self.live = Live(console=self.terminal, get_renderable=self._table, refresh_per_second=4, transient=True)

    def show_doing(self, text: str) -> None:
        self._doing = text

    def line_once(self, text: str) -> None:
        """A line that several runs would repeat."""
        if text not in self._said:
            self._said.add(text)
            self.line(text)

    def start(self, at_once: int) -> None:
        """Runs start, at most ``at_once`` at a time."""
        self._at_once, self._doing = at_once, ""

    def add(self, name: str) -> None:
        self.rows.append(Row(self, name))

    def rename(self, index: int, name: str) -> None:
        self.rows[index].name = name

    def begin(self, index: int) -> None:
        row = self.rows[index]
        row.state, row.note, row.begun = RUNNING, "starting the workers", time.monotonic()
        if not self.is_live:
            begun = sum(row.begun > 0 for row in self.rows)
            self.line(f"{row.name}: begins, run {begun} of {self._total()}")

    def end(self, index: int, state: str, note: str) -> None:
        """A run has ended as ``state``; ``note`` is its result, or why."""
        row = self.rows[index]
        row.state, row.note = state, note
        row.took_s = time.monotonic() - row.begun if row.begun else None
        left = self.left_s()
        rest = f"; about {duration(left)} left" if left else ""
        what = note if note.startswith(state) else f"{state}, {note}"  # stopped by --max-time
        self.line(f"{row.name}: {what} ({self._ended()} of {self._total()} runs{rest})")

    def ended_before(self, index: int, state: str, note: str, took_s: float) -> None:
        """A run has ended under an earlier driver."""
        row = self.rows[index]
        row.state, row.note, row.took_s, row.resumed = state, note, took_s, True

    def skip(self, index: int, reason: str) -> None:
        self.rows[index].state, self.rows[index].note = SKIPPED, reason
        self.line(f"{self.rows[index].name}: skipped, {reason}")

    def left_s(self) -> float:
        """Estimated seconds until the end, by what runs are expected to take, and where that is unknown, by the mean of
        those that have finished; 0 when unknown, or when none is left.

        While a run waits for room in the cluster, nobody knows.
        """
        if any(row.state == RUNNING and not row.has_room for row in self.rows):
            return 0.0
        times = [row.took_s for row in self.rows if row.state == FINISHED and row.took_s and not row.resumed]
        usual = sum(times) / len(times) if times else None
        now, left = time.monotonic(), 0.0
        for row in (row for row in self.rows if row.state in (RUNNING, WAITING)):
            whole = usual if row.expected_s is None else row.expected_s
            if whole is None:
                return 0.0
            left += max(whole - (now - row.begun if row.state == RUNNING else 0.0), 0.0)
        return left / self._at_once

    def _ended(self) -> int:
        return sum(row.state in (FINISHED, FAILED, STOPPED) and row.begun > 0 for row in self.rows)

    def _total(self) -> int:
        """The runs of this driver: not those skipped, nor those that had ended before."""
        return sum(row.state in (WAITING, RUNNING) or row.begun > 0 for row in self.rows)

    def _table(self) -> Group:
        table = Table.grid(padding=(0, 2, 0, 0))
        for row in self._shown():
            spent = row.took_s or (time.monotonic() - row.begun if row.state == RUNNING else 0.0)
            bar = f"{row.share:4.0%}" if row.state == RUNNING else ""
            cells = f"{_MARKS[row.state]} {row.name}", row.state, bar, duration(spent) if spent else "", row.note
            table.add_row(*(Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in cells))
        left = self.left_s()
        parts = [f"{self._ended()} of {self._total()} runs", f"{duration(time.time() - self._begun)} so far"]
        parts += [f"about {duration(left)} left"] * bool(left)
        parts += [] if self.usd is None else [dollars(self.usd)]
        return Group(table, Text(self._doing or ", ".join(parts)))

    def _shown(self) -> Sequence[Row]:
        """All rows, or as many as fit on the screen around the first that runs."""
        most = min(_MOST_ROWS, max(self.terminal.height - 3, 3))
        if len(self.rows) <= most:
            return self.rows
        now = next((i for i, row in enumerate(self.rows) if row.state in (RUNNING, WAITING)), len(self.rows) - 1)
        first = min(max(now - most // 2, 0), len(self.rows) - most)
        return self.rows[first : first + most]


def result(task: TaskSpec, score: float, times: Mapping[str, float]) -> str:
    """A finished run's result: its test figure, and of its times the training's and the throughput, if known."""
    rate = times.get(task.throughput)
    speed = f", {task.speed(rate)}" if rate else ""
    return f"test {task.primary.named(score)}, training {times['time/training_s']:.1f} s{speed}"
