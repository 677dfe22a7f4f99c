"""The display of a run: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cifar_ray.config.errors import printable
from cifar_ray.display.terminal import Display, View
from cifar_ray.tasks import LOSS, SUBSETS, USUAL, TaskSpec, measured_on
from cifar_ray.tasks.spec import CHOSEN_EPOCH
from cifar_ray.training.rank_times import PHASES


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

    def heading(self, text: str) -> None:
        self.line(text)

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

        ``times`` are those of all attempts together, ``attempt_s`` the wall time of the last one, if there were others.
        """
        task, primary = self._task, self._task.primary
        results = {figure.name: figure.result(metrics) for figure in (*task.figures, LOSS)}
        rows = metric_rows(task, {name: metrics[metric] for name, metric in results.items() if metric in metrics})
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


def metric_rows(task: TaskSpec, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Rows of a table: a task's figures of the test that are there, and the loss."""
    figures = [figure for figure in (*task.figures, LOSS) if figure.name in metrics]
    return [(f"test {figure.name}{' (macro)' * figure.macro}", figure.text(metrics[figure.name])) for figure in figures]


def cpu_note(reason: str) -> str:
    """A note on a run that uses CPUs because there were too few GPUs."""
    return f"note: training on CPUs, though there are GPUs: {reason}"


def made_up_note(local_nodes: int) -> str:
    """A note on a run whose nodes do not exist."""
    return f"note: {local_nodes} Ray nodes on this machine; do not read the times as a cluster's"


def shared_note(share: float) -> str:
    """A note on a sweep whose runs have a part of a GPU each."""
    return f"note: runs share GPUs, each with at most {100 * share:g} % of one's memory; reports ignore their times"
