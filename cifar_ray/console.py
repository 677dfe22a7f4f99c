"""What a person sees of a run: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

PHASES = ("startup", "data", "training", "evaluation", "checkpoint")
_METRICS = ("accuracy", "precision", "recall", "f1", "specificity", "loss")


class Console:
    """Shows the course of one run on standard output."""

    def __init__(self) -> None:
        self._terminal = Terminal(highlight=False, soft_wrap=True)
        self._live: Progress | None = None
        self._task: TaskID | None = None
        self._epochs = 0
        self._steps_per_epoch = 0
        self._loss: float | None = None
        self._begun = (time.perf_counter(), 0)

    def __enter__(self) -> Console:
        if self._terminal.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[figures]}"),
                console=self._terminal,
                transient=True,
                expand=True,
            )
            self._live.start()
            self._task = self._live.add_task("starting", total=None, figures="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def line(self, text: str) -> None:
        """One plain line, above the live one if there is one."""
        self._terminal.print(text, markup=False)

    def doing(self, text: str) -> None:
        """What is going on before the first step."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, description=text)
        else:
            self.line(text)

    def training(self, epochs: int, steps_per_epoch: int, step: int) -> None:
        """The first step is next."""
        self._epochs, self._steps_per_epoch = epochs, steps_per_epoch
        self._begun = (time.perf_counter(), step)
        if self._live is not None and self._task is not None:
            epoch = min(step // steps_per_epoch + 1, epochs)
            total = epochs * steps_per_epoch
            self._live.update(self._task, description=f"epoch {epoch}/{epochs}", total=total, completed=step)

    def loss(self, value: float) -> None:
        """The latest mean loss."""
        self._loss = value

    def progress(self, epoch: int, step: int, images_per_s: float) -> None:
        """Where the run is; the time left is from the pace of this process."""
        if self._live is None or self._task is None:
            return
        begun, first = self._begun
        pace = (time.perf_counter() - begun) / max(step - first, 1)
        left = duration(pace * (self._epochs * self._steps_per_epoch - step))
        loss = "" if self._loss is None else f"loss {self._loss:.3f}  "
        self._live.update(
            self._task,
            completed=step,
            description=f"epoch {epoch + 1}/{self._epochs}",
            figures=f"{loss}{images_per_s:,.0f} images/s  {left} left",
        )

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """One line for an epoch that is done."""
        self.line(
            f"epoch {number}/{self._epochs}  train loss {metrics['train/epoch_loss']:.4f}  "
            f"test loss {metrics['test/loss']:.4f}  accuracy {metrics['test/accuracy']:.2%}  "
            f"{metrics['epoch_s']:.1f} s  {metrics['images_per_s']:,.0f} images/s"
        )

    def summary(
        self, metrics: Mapping[str, float], times: Mapping[str, float], places: Iterable[tuple[str, str]]
    ) -> None:
        """The closing table: metrics of the last epoch, times, and where everything is."""
        table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name in _METRICS:
            value = metrics[f"test/{name}"]
            shown = f"{value:.4f}" if name == "loss" else f"{value:.2%}"
            table.add_row(f"test {name}" + ("" if name in ("accuracy", "loss") else " (macro)"), shown)
        best = f"{metrics['best/accuracy']:.2%} in epoch {metrics['best/epoch']:.0f}"
        table.add_row("best test accuracy", best)
        table.add_row("images evaluated", f"{metrics['test/images']:,.0f}")
        table.add_row("", "")
        for phase in PHASES:
            table.add_row(phase, f"{times[f'time/{phase}_s']:.2f} s")
        table.add_row("training per epoch", f"{times['time/epoch_mean_s']:.2f} s")
        if "time/iteration_mean_s" in times:
            figures = (f"{name} {1000 * times[f'time/iteration_{name}_s']:.1f} ms" for name in ("mean", "median", "p95"))
            table.add_row("training per iteration", ", ".join(figures))
            table.add_row("throughput", f"{times['images_per_s']:,.0f} images/s")
        table.add_row("peak memory of a worker", f"{metrics['peak_memory_mib']:,.0f} MiB")
        table.add_row("", "")
        for label, value in places:
            table.add_row(label, value)
        self._terminal.print(table)

    def table(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Two columns of text."""
        grid = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in rows:
            grid.add_row(label, str(value))
        self._terminal.print(grid, markup=False)


def duration(seconds: float) -> str:
    """``59 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
