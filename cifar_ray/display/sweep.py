"""The display of a sweep: a live table of its runs in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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


@dataclass(frozen=True)
class Shown:
    """What there is to show of a run, as a whole.

    Attributes:
        state: ``waiting``, ``running``, ``finished``, ``failed``, ``stopped`` (by the scheduler or a limit), or
            ``skipped``.
        note: what it is doing, or its result.
        share: fraction that is done, from 0 to 1.
        resumed: whether an earlier driver did a part of it, so that its time is no estimate for others.
        has_room: False while it waits for room in the cluster.
        lines: all that it has said so far.
    """

    state: str = WAITING
    note: str = ""
    share: float = 0.0
    resumed: bool = False
    has_room: bool = True
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Line:
    """A sentence of a run.

    Attributes:
        of_all: whether other runs of the sweep say the same, so that it is shown once.
        is_plain: whether it is shown only where there is no live table.
    """

    text: str
    of_all: bool = False
    is_plain: bool = False


class CellView(View):
    """A run that a sweep's board shows, perhaps in another process: ``show`` gets what there is to show of it."""

    def __init__(self, show: Callable[[Shown], object], shown: Shown) -> None:
        super().__init__()
        self._show, self._shown = show, shown

    def change(self, **changes: Any) -> None:
        """Show it with these fields of :class:`Shown` changed."""
        self._shown = replace(self._shown, **changes)
        self._show(self._shown)

    def _say(self, line: Line) -> None:
        self.change(lines=(*self._shown.lines, line))

    def heading(self, text: str) -> None:
        pass  # the board has said it of all runs

    def line(self, text: str) -> None:
        self._say(Line(text))

    def doing(self, text: str) -> None:
        if self._shown.state == RUNNING:  # else its result is shown
            self.change(note=text, has_room=True)

    def no_room(self, seconds: float) -> None:
        if self._shown.has_room:
            self._say(Line("waiting for room in the cluster", is_plain=True))
        super().no_room(seconds)
        self.change(has_room=False)

    def started(self, text: str) -> None:
        self._say(Line(text, of_all=True))

    def training(self, task: TaskSpec, epochs: int, steps_per_epoch: int, step: int) -> None:
        super().training(task, epochs, steps_per_epoch, step)
        self.change(share=step / self._steps, resumed=step > 0, note="training", has_room=True)

    def show_step(self, step: int, epoch: str, figures: str) -> None:
        self.change(share=step / self._steps, note=f"{epoch}, {figures}")

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        self._say(Line(self.of_epoch(number, metrics), is_plain=True))


@dataclass
class Row:
    """One run on the board."""

    name: str
    shown: Shown = field(default_factory=Shown)
    begun: float = 0.0  # time.monotonic() when it began
    took_s: float | None = None  # None before its end


class Board(Display):
    """Displays a sweep on standard output."""

    def __init__(self, names: Sequence[str], begun: float) -> None:
        """Show the runs of these names; the clock counts from ``begun``, a ``time.time()``, through all drivers."""
        super().__init__()
        self.rows = [Row(name) for name in names]
        self.usd: float | None = None  # what all runs have cost so far, with a price
        self._at_once, self._begun, self._doing = 1, begun, ""
        self._said: set[str] = set()
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
        self.rows.append(Row(name))

    def show(self, index: int, shown: Shown) -> None:
        """Show what is new of a run: that it begins, what it says, or that it has ended."""
        row, before = self.rows[index], self.rows[index].shown
        row.shown = shown
        if not row.begun and shown.state not in (WAITING, SKIPPED):
            row.begun = time.monotonic()
            if not self.is_live:
                begun = sum(row.begun > 0 for row in self.rows)
                self.line(f"{row.name}: begins, run {begun} of {self._total()}")
        for line in shown.lines[len(before.lines) :]:
            if line.of_all:
                self.line_once(line.text)
            elif not (line.is_plain and self.is_live):
                self.line(f"{row.name}: {line.text}")
        if shown.state == before.state or shown.state in (WAITING, RUNNING):
            return
        if shown.state == SKIPPED:
            self.line(f"{row.name}: skipped, {shown.note}")
            return
        row.took_s = time.monotonic() - row.begun
        is_said = shown.note.startswith(shown.state)  # stopped by --max-time
        what = shown.note if is_said else f"{shown.state}, {shown.note}"
        self.line(f"{row.name}: {what} ({self._progress()})")

    def ended_before(self, index: int, shown: Shown, took_s: float) -> None:
        """A run has ended under an earlier driver."""
        self.rows[index].shown, self.rows[index].took_s = replace(shown, resumed=True), took_s

    def left_s(self) -> float:
        """Estimated seconds until the end, by the mean of those that have finished; 0 when none has, or none is left.

        While a run waits for room in the cluster, nobody knows.
        """
        whole = [row for row in self.rows if row.shown.state == FINISHED and not row.shown.resumed]
        times = [row.took_s for row in whole if row.took_s]
        if not times or any(row.shown.state == RUNNING and not row.shown.has_room for row in self.rows):
            return 0.0
        usual, now = sum(times) / len(times), time.monotonic()
        left = sum(usual for row in self.rows if row.shown.state == WAITING)
        left += sum(max(usual - (now - row.begun), 0.0) for row in self.rows if row.shown.state == RUNNING)
        return left / self._at_once

    def _progress(self) -> str:
        """How many runs have ended, and how long the others may take."""
        ended = sum(row.shown.state in (FINISHED, FAILED, STOPPED) and row.begun > 0 for row in self.rows)
        left = self.left_s()
        return f"{ended} of {self._total()} runs" + f", about {duration(left)} left" * bool(left)

    def _total(self) -> int:
        """The runs of this driver: not those skipped, nor those that had ended before."""
        return sum(row.shown.state in (WAITING, RUNNING) or row.begun > 0 for row in self.rows)

    def _table(self) -> Group:
        table = Table.grid(padding=(0, 2, 0, 0))
        for row in self._visible():
            spent = row.took_s or (time.monotonic() - row.begun if row.shown.state == RUNNING else 0.0)
            bar = f"{row.shown.share:4.0%}" if row.shown.state == RUNNING else ""
            cells = (
                f"{_MARKS[row.shown.state]} {row.name}",
                row.shown.state,
                bar,
                duration(spent) if spent else "",
                row.shown.note,
            )
            table.add_row(*(Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in cells))
        parts = [self._progress(), f"{duration(time.time() - self._begun)} so far"]
        parts += [] if self.usd is None else [dollars(self.usd)]
        return Group(table, Text(self._doing or ", ".join(parts)))

    def _visible(self) -> Sequence[Row]:
        """All rows, or as many as fit on the screen around the first that runs."""
        most = min(_MOST_ROWS, max(self.terminal.height - 3, 3))
        if len(self.rows) <= most:
            return self.rows
        now = next((i for i, row in enumerate(self.rows) if row.shown.state in (RUNNING, WAITING)), len(self.rows) - 1)
        first = min(max(now - most // 2, 0), len(self.rows) - most)
        return self.rows[first : first + most]


def result(task: TaskSpec, score: float, times: Mapping[str, float]) -> str:
    """A finished run's result: its test figure, and of its times the training's and the throughput, if known."""
    rate = times.get(task.throughput)
    speed = f", {task.speed(rate)}" if rate else ""
    return f"test {task.primary.named(score)}, training {times['time/training_s']:.1f} s{speed}"
