"""Standard output with a part that is drawn anew, and what is shown of one run: alone, or as a row of a sweep."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console as Terminal
from rich.live import Live
from rich.progress import Progress

from cifar_ray.config.errors import printable
from cifar_ray.config.limits import dollars, duration
from cifar_ray.config.option import TEXT
from cifar_ray.tasks import LOSS, USUAL, TaskSpec, measured_on

if TYPE_CHECKING:
    from typing_extensions import Self


_LIVE_S, _LINES_S = 0.2, 10.0
"""Seconds between two reports of what goes on: on a screen, and in plain lines."""


def tilde(path: str) -> str:
    """``path`` with ``~`` for the home folder."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  Path's own raises where there is no home folder
    return f"~/{Path(path).relative_to(home)}" if home.name and home in Path(path).parents else path


class Output(Terminal):
    """Standard output; when its reader, such as ``head``, has gone, the run goes on without a display."""

    def on_broken_pipe(self) -> None:
        """Discard all further output."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display(ABC):
    """Plain lines, above a live part in a terminal.

    Attributes:
        terminal: standard output.
        live: the live part; a subclass sets it.
        is_live: whether it is on the screen.
    """

    live: Live | Progress

    def __init__(self) -> None:
        self.terminal = Output(highlight=False, soft_wrap=True)
        self.is_live = False
        self._told = -_LINES_S

    def __enter__(self) -> Self:
        # In a notebook, rich's live part is a widget.
        if self.terminal.is_terminal or (self.terminal.is_jupyter and find_spec("ipywidgets")):
            self.live.start()
            self.is_live = True
        return self

    def __exit__(self, *_: object) -> None:
        self.end_live()

    def end_live(self) -> None:
        """Clear the live part; what follows is plain lines."""
        if self.is_live:
            self.live.stop()
            self.is_live = False

    @contextmanager
    def aside(self, text: str) -> Iterator[None]:
        """Context manager: leave the terminal to another progress bar."""
        self.line(text)
        if self.is_live:
            self.live.stop()
        try:
            yield
        finally:
            if self.is_live:
                self.live.start()

    def line(self, text: str, indent: int = 0) -> None:
        """Plain lines, above the live part if there is one; on a screen they break between words, then ``indent``."""
        text = printable(text)
        if self.terminal.is_terminal:  # words, such as paths, stay whole and can be copied
            how: Any = {"subsequent_indent": " " * indent, "break_long_words": False, "break_on_hyphens": False}
            text = "\n".join(textwrap.fill(line, self.terminal.width, **how) for line in text.split("\n"))
        self.terminal.print(text, markup=False)

    def doing(self, text: str) -> None:
        """What is going on before the first step."""
        if self.is_live:
            self.show_doing(printable(text))
        else:
            self.line(text)

    def waiting(self, suitable: int, wanted: int, waited_s: float, limit_s: float) -> None:
        """How long a run or a sweep has waited for nodes, and how many have come; told now and then."""
        self._now_and_then(_waiting(suitable, wanted, waited_s, limit_s))

    def decoding(self, name: str, done: int, total: int) -> None:
        """``done`` of ``total`` images of a data set have been decoded, or texts read; told now and then."""
        verb, unit = ("reading", "texts") if name.startswith(TEXT) else ("decoding", "images")
        self._now_and_then(f"{verb} {name}: {done:,} of {total:,} {unit}")

    def _now_and_then(self, text: str) -> None:
        if time.monotonic() - self._told > (_LIVE_S if self.is_live else _LINES_S):
            self._told = time.monotonic()
            self.doing(text)

    @abstractmethod
    def show_doing(self, text: str) -> None:
        """Have the live part say what is going on."""


class View(ABC):
    """What displays one run: a :class:`cifar_ray.display.run.Console`, or its row on a sweep's board."""

    def __init__(self, task: TaskSpec = USUAL) -> None:
        """Display figures of that task, until a run of another one begins."""
        self._task, self._epochs, self._steps, self._loss, self._cost = task, 1, 1, "", ""

    @abstractmethod
    def heading(self, text: str) -> None:
        """What is trained, before it begins; a sweep says it of all its runs."""

    @abstractmethod
    def line(self, text: str) -> None:
        """A sentence that stays."""

    @abstractmethod
    def doing(self, text: str) -> None:
        """What is going on before the first step."""

    def waiting(self, suitable: int, wanted: int, waited_s: float, limit_s: float) -> None:
        """How long it has waited for nodes, and how many have come."""
        self.doing(_waiting(suitable, wanted, waited_s, limit_s))

    @abstractmethod
    def started(self, text: str) -> None:
        """On what the run trains."""

    @abstractmethod
    def show_step(self, step: int, epoch: str, figures: str) -> None:
        """So many steps are done."""

    def no_room(self, seconds: float) -> None:
        """The workers have waited so long for room in the cluster."""
        self.doing(f"waiting for room in the cluster, {duration(seconds)} so far")

    def training(self, task: TaskSpec, epochs: int, steps_per_epoch: int, step: int) -> None:
        """Training for a task starts after ``step``."""
        self._task, self._epochs, self._steps = task, epochs, epochs * steps_per_epoch

    def loss(self, value: float) -> None:
        """The latest mean loss."""
        self._loss = f"loss {value:.3f}, "

    def progress(self, epoch: int, step: int, images_per_s: float) -> None:
        """The current step."""
        figures = f"{self._loss}{self._task.speed(images_per_s)}{self._cost}"
        self.show_step(step, f"epoch {epoch + 1}/{self._epochs}", figures)

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """An epoch has ended."""
        self.line(self.of_epoch(number, metrics))

    def of_epoch(self, number: int, metrics: Mapping[str, float]) -> str:
        """The figures of an epoch as a line."""
        task, primary, subset = self._task, self._task.primary, measured_on(metrics)
        return (
            f"epoch {number}/{self._epochs}  train loss {metrics['train/epoch_loss']:.4f}  "
            f"{subset} loss {metrics[LOSS.on(subset)]:.4f}  {subset} {primary.named(metrics[primary.on(subset)])}  "
            f"{metrics['epoch_s']:.1f} s  {task.speed(metrics[task.epoch_throughput])}"
        )

    def cost(self, usd: float) -> None:
        """What the run has cost so far."""
        self._cost = f", {dollars(usd)}"


def _waiting(suitable: int, wanted: int, waited_s: float, limit_s: float) -> str:
    return f"waiting for nodes: {suitable} of {wanted}, {duration(waited_s)} of at most {duration(limit_s)}"
