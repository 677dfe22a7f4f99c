"""The display of a sweep: a live table of its runs in a terminal, plain lines elsewhere."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from cifar_ray.config.errors import printable
from cifar_ray.config.limits import dollars, duration
from cifar_ray.display.terminal import Display
from cifar_ray.tasks import USUAL, TaskSpec, measured_on

WAITING, RUNNING, FINISHED, FAILED, STOPPED, SKIPPED = "waiting", "running", "finished", "failed", "stopped", "skipped"
_MOST_ROWS = 30
_MARKS = {WAITING: "·", RUNNING: "▶", FINISHED: "✓", FAILED: "✗", STOPPED: "■", SKIPPED: "–"}


@dataclass
class RowState:
    """A row of the table: one run.

    Attributes:
        state: ``waiting``, ``running``, ``finished``, ``failed``, ``stopped`` (by the scheduler or a limit), or
            ``skipped``.
        note: what it is doing, or its result.
        share: fraction that is done, from 0 to 1.
        begun: ``time.monotonic()`` when it began.
        took_s: seconds that it took; None before its end.
        resumed: whether an earlier driver did a part of it, so that its time is no estimate for others.
        no_room_since: ``time.monotonic()`` since when it waits for room in the cluster; None when it does not.
        expected_s: seconds that it is expected to take from its beginning; None when only other runs' times tell.
    """

    name: str
    state: str = WAITING
    note: str = ""
    share: float = 0.0
    begun: float = 0.0
    took_s: float | None = None
    resumed: bool = False
    no_room_since: float | None = None
    expected_s: float | None = None


class Board(Display):
    """Displays a sweep on standard output."""

    def __init__(self, names: Sequence[str], begun: float) -> None:
        """Show the runs of these names; the clock counts from ``begun``, a ``time.time()``, through all drivers.

        ``usd`` is what all runs have cost so far; None without a price.
        """
        super().__init__()
        self.rows = [RowState(name) for name in names]
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
        self.rows.append(RowState(name))

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
        row.state, row.note, row.share = state, note, 1.0
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
        if any(row.state == RUNNING and row.no_room_since is not None for row in self.rows):
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
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, highlight=False)
        for row in self._shown():
            spent = row.took_s or (time.monotonic() - row.begun if row.state == RUNNING else 0.0)
            bar = f"{row.share:4.0%}" if row.state == RUNNING else ""
            table.add_row(
                Text(f"{_MARKS[row.state]} {row.name}"),
                Text(row.state),
                Text(bar),
                Text(duration(spent) if spent else ""),
                _WholeWords(_note(row)),
            )
        left = self.left_s()
        parts = [f"{self._ended()} of {self._total()} runs", f"{duration(time.time() - self._begun)} so far"]
        parts.append(f"about {duration(left)} left" if left else "")
        parts.append("" if self.usd is None else dollars(self.usd))
        return Group(table, Text(self._doing or ", ".join(filter(None, parts))))

    def _shown(self) -> Sequence[RowState]:
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


def _note(row: RowState) -> str:
    if row.state != RUNNING or row.no_room_since is None:
        return printable(row.note)
    return f"waiting for room in the cluster for {duration(time.monotonic() - row.no_room_since)}"


@dataclass
class _WholeWords:
    """One line of text; of what has no room, words are left out."""

    text: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(textwrap.shorten(self.text, options.max_width, placeholder=" …"), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(len(self.text), 1)).with_maximum(options.max_width)


class RunView:
    """One run's row of the table; a :class:`cifar_ray.display.run.View`."""

    def __init__(self, board: Board, index: int) -> None:
        self._board, self._row = board, board.rows[index]
        self._task, self._epochs, self._total, self._loss = USUAL, 1, 1, ""

    def line(self, text: str) -> None:
        self._board.line(f"{self._row.name}: {text}")

    def doing(self, text: str) -> None:
        self._row.note, self._row.no_room_since = text, None

    def no_room(self, seconds: float) -> None:
        if self._row.no_room_since is None:
            self._row.no_room_since = time.monotonic() - seconds
            if not self._board.is_live:
                self.line("waiting for room in the cluster")

    def started(self, text: str) -> None:
        self._board.line_once(text)

    def training(self, task: TaskSpec, epochs: int, steps_per_epoch: int, step: int) -> None:
        self._task, self._epochs, self._total = task, epochs, epochs * steps_per_epoch
        self._row.share, self._row.resumed = step / self._total, step > 0
        self._row.note, self._row.no_room_since = "training", None

    def loss(self, value: float) -> None:
        self._loss = f"loss {value:.3f}, "

    def progress(self, epoch: int, step: int, images_per_s: float) -> None:
        self._row.share = step / self._total
        self._row.note = f"epoch {epoch + 1}/{self._epochs}, {self._loss}{self._task.speed(images_per_s)}"

    def cost(self, usd: float) -> None:
        pass  # the last line has that of all runs

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        if not self._board.is_live:
            task, primary, subset = self._task, self._task.primary, measured_on(metrics)
            self._board.line(
                f"{self._row.name}: epoch {number}/{self._epochs}, "
                f"{subset} {primary.named(metrics[primary.on(subset)])}, "
                f"{metrics['epoch_s']:.1f} s, {task.speed(metrics[task.epoch_throughput])}"
            )
