"""The display of a run: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cifar_ray.config.errors import printable
from cifar_ray.config.limits import dollars, duration
from cifar_ray.display.terminal import Display, View, tilde
from cifar_ray.tasks import LOSS, SUBSETS, USUAL, Subset, TaskSpec, measured_on
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.training.rank_times import PHASES

if TYPE_CHECKING:
    from cifar_ray.strategies import About


@dataclass(frozen=True)
class Check:
    """What the doctor has checked; ``problem`` says what to do when it is wrong."""

    subject: str
    state: str
    problem: str = ""


_TEXT = 60
"""Characters of a text in a line about it."""


class Console(Display, View):
    """Displays one run on standard output."""

    def __init__(self, task: TaskSpec = USUAL) -> None:
        """Display figures of that task, until a run of another one begins."""
        Display.__init__(self)
        View.__init__(self, task)
        self.live: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.terminal,
            transient=True,
            expand=True,
        )
        self._bar = self.live.add_task("starting", total=None, figures="")

    def show_doing(self, text: str) -> None:
        self.live.update(self._bar, description=text, figures="")

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

    def started(self, text: str) -> None:
        self.line(text)

    def training(self, task: TaskSpec, epochs: int, steps_per_epoch: int, step: int) -> None:
        super().training(task, epochs, steps_per_epoch, step)
        self.live.reset(self._bar, total=self._steps, completed=step, description="training")

    def show_step(self, step: int, epoch: str, figures: str) -> None:
        self.live.update(self._bar, completed=step, description=epoch, figures=figures)

    def summary(
        self,
        metrics: Mapping[str, float],
        times: Mapping[str, float],
        places: Iterable[tuple[str, str]],
        attempt_s: float | None = None,
    ) -> None:
        """The final table: test figures of the chosen checkpoint, or of the last epoch, times, and where everything is.

        Args:
            metrics: of the run.
            times: of all attempts together.
            places: label and address.
            attempt_s: wall time of this attempt in seconds, where there were others before; None for a new run.
        """
        task, primary = self._task, self._task.primary
        results = {figure.name: figure.result(metrics) for figure in (*task.figures, LOSS)}
        rows = self._metric_rows({name: metrics[metric] for name, metric in results.items() if metric in metrics})
        if CHOSEN_EPOCH in metrics:
            best = f": {primary.text(metrics[primary.best])}" if primary.best in metrics else ""
            by = f"the best {SUBSETS[measured_on(metrics)]} {primary.name}{best}"
            rows.append(("chosen", f"epoch {metrics[CHOSEN_EPOCH]:.0f}, by {by}"))
            rows.append((f"test {primary.name}, last epoch", primary.text(metrics[primary.metric])))
        rows.append((f"{task.unit} evaluated", f"{metrics[task.counted_on('test')]:,.0f}"))
        rows.append(("", ""))
        rows += [(phase, f"{times[f'time/{phase}_s']:.2f} s") for phase in (*PHASES, "other", "wall")]
        if attempt_s is not None:
            rows.append(("wall, this attempt", f"{attempt_s:.2f} s"))
        rows.append(("training per epoch", f"{times['time/epoch_mean_s']:.2f} s"))
        if "time/iteration_mean_s" in times:
            parts = (f"{name} {1000 * times[f'time/iteration_{name}_s']:.1f} ms" for name in ("mean", "median", "p95"))
            rows.append(("training per iteration", ", ".join(parts)))
            rows.append(("throughput", task.speed(times[task.throughput])))
        if "tokens_per_s" in times:
            padding = f"{100 * times['padding_share']:.1f} % of what is computed is padding"
            rows.append(("tokens", f"{times['tokens_per_s']:,.0f} tokens/s; {padding}"))
        rows.append(("peak memory of a worker", f"{metrics['peak_memory_mib']:,.0f} MiB"))
        if "skipped_steps" in metrics:
            rows.append(("steps skipped in fp16", f"{metrics['skipped_steps']:,.0f}"))
        self.table([*rows, ("", ""), *places])

    def result(self, name: str, metrics: Mapping[str, float], times: Mapping[str, float]) -> None:
        """A finished run in one line."""
        task, primary = self._task, self._task.primary
        speed = f", {task.speed(times[task.throughput])}" if task.throughput in times else ""
        took = duration(times["time/wall_s"])
        self.line(f"run {name}: test {primary.named(metrics[primary.result(metrics)])}{speed}, {took}")

    def scores(
        self,
        metrics: Mapping[str, float],
        images: int,
        checkpoint: str,
        recorded_score: float | None,
        recorded_images: int | None,
        recorded_on: Subset = "test",
    ) -> None:
        """A checkpoint's evaluation, with the primary figure recorded when it was written, maybe on other images."""
        task, primary = self._task, self._task.primary
        evaluated = (f"{task.unit} evaluated", f"{images:,}")
        rows = [*self._metric_rows(metrics), evaluated, ("checkpoint", tilde(checkpoint))]
        if recorded_score is not None and recorded_images is not None:
            on = "" if recorded_images == images else f" on {recorded_images:,} of them (--test-images)"
            if recorded_on == "val":
                on = f" on {recorded_images:,} validation {task.unit}"
            rows.append((f"{recorded_on} {primary.name} when written", f"{primary.text(recorded_score)}{on}"))
        self.table(rows)

    def predictions(self, task: TaskSpec, documents: Iterable[Mapping[str, Any]]) -> None:
        """One line per sample: its likeliest classes with their probabilities, or its values, and its mask's file."""
        for document in documents:
            sample, row, mask = next(iter(document.values())), document.get("row"), document.get("mask")
            shown = textwrap.shorten(sample, _TEXT, placeholder="...") if isinstance(sample, str) else f"{sample}"
            of = f" row {row}" * bool(row) + f" -> {mask}" * bool(mask)
            answers = ", ".join(f"{name} {task.answer_text(number)}" for name, number in document[task.names])
            self.line(f"{shown}{of}: {answers}")

    def strategies(self, known: Mapping[str, About]) -> None:
        """Each strategy: its promise, source and messages."""
        for name, about in known.items():
            self.line(f"{name}: {about.label}")
            each_step = f"{about.messages} messages, {about.bytes} bytes"
            rows = [("what", about.summary), (about.label, about.condition), ("source", about.source)]
            rows += [("each step", each_step), ("", about.cost)]
            self.table((f"  {title}", text.replace("``", "")) for title, text in rows)
            self.line("")
        self.line("each step: what a rank hands over, in a pipeline all ranks; W workers, P parameters of G bytes")

    def checks(self, checks: Iterable[Check]) -> list[Check]:
        """The doctor's checks, each as it comes; return them."""
        shown = []
        for check in checks:
            shown.append(check)
            self.line(f"{'!!' if check.problem else 'ok'}  {check.subject:<18} {check.state}")
            if check.problem:
                self.line(f"    {'':<18} {check.problem}")
        is_unfit = any(check.problem for check in shown)
        self.line("see to the lines marked !! first" if is_unfit else "nothing stands in the way of a run")
        return shown

    def sweep_summary(
        self,
        states: Mapping[str, str],
        figures: Mapping[str, float],
        name: str,
        store_flag: str,
        way: str,
        winner: Sequence[tuple[str, str]] = (),
    ) -> None:
        """A sweep's runs by state, where its time went, and the way to its page in MLflow.

        Args:
            states: state of each run, by name.
            figures: the sweep's own, by metric.
            name: of the sweep.
            store_flag: what other commands need to find its store (:func:`cifar_ray.tracking.uri.flag`).
            way: to its page in MLflow.
            winner: rows on the best run of a search.
        """
        counts = Counter(states.values())
        rows = [("runs", ", ".join(f"{count} {state}" for state, count in counts.items()))]
        rows.append(("wall time", duration(figures["sweep/wall_s"])))
        if "cost/usd" in figures:
            rows.append(("cost, all runs", dollars(figures["cost/usd"])))
        rows += [(f"{phase}, all runs", f"{figures[f'sweep/{phase}_s']:.1f} s") for phase in PHASES]
        rows.append(("outside training", f"{figures['sweep/share_outside_training']:.0%} of the wall time"))
        failed = [run for run, state in states.items() if state == "failed"]
        rows += [
            ("failed", f"{run}; `cifar-ray resume {shlex.quote(run)}{store_flag}` tries it again") for run in failed
        ]
        if len(failed) > 1:
            rows.append(("try all again", f"cifar-ray sweep --resume {name} --retry-failed{store_flag}"))
        rows += [("report", f"cifar-ray report {name}{store_flag}"), ("open in MLflow", way), *winner]
        self.table(rows)

    def columns(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table, whose last column may be long."""
        lines = [[printable(cell).replace("\n", " ") for cell in row] for row in (header, *rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(header) - 1)]
        for line in lines:
            cells = [f"{cell:<{width}}" for cell, width in zip(line, widths)]
            self.line("  ".join([*cells, line[-1]]), indent=4)

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Labels and values; a long value goes on below itself."""
        self.end_live()
        rows = list(rows)
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            self.line(f"{label:<{width}}  {value}".rstrip(), indent=width + 2)

    def _metric_rows(self, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        figures = [figure for figure in (*self._task.figures, LOSS) if figure.name in metrics]
        return [
            (f"test {figure.name}{' (macro)' * figure.macro}", figure.text(metrics[figure.name])) for figure in figures
        ]


def _answer(task: TaskSpec, number: float) -> str:
    """One number of a prediction."""
    if task.answer != "values":
        return f"{number:.1%}"
    return f"{number:.0f}" if abs(number) >= 1e3 else f"{number:.4g}"


def cpu_note(reason: str) -> str:
    """A note on a run that uses CPUs because there were too few GPUs."""
    return f"note: training on CPUs, though there are GPUs: {reason}"


def made_up_note(local_nodes: int) -> str:
    """A note on a run whose nodes do not exist."""
    return f"note: {local_nodes} Ray nodes on this machine; do not read the times as a cluster's"


def shared_note(share: float) -> str:
    """A note on a sweep whose runs have a part of a GPU each."""
    return f"note: runs share GPUs, each with at most {100 * share:g} % of one's memory; reports ignore their times"
