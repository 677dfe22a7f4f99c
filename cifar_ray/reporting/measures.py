"""The figures that reports show: how each is read from a run, which way is better, and how it is written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cifar_ray.reporting import aggregate, cost, pace
from cifar_ray.reporting.aggregate import Measure, Statistic, metric
from cifar_ray.reporting.cost import Price
from cifar_ray.tracking.study import Trial

Alike = Literal["", "work", "step", "device"]


@dataclass(frozen=True)
class Figure:
    """One figure of a run.

    Attributes:
        key: short name with its unit at the end, as in ``figures.csv``.
        title: what it is, with its unit.
        measure: reads it from a run, in the unit of the title.
        unit: what follows the number in a sentence, such as `` s``.
        digits: decimals; None for three significant digits.
        better: which way is better; empty when neither is.
        alike: what runs must share for one to be the best of them: the images trained on (``work``), the global batch
            of a step (``step``), or the device.
        note: what a reader must know of it.
        remark: what a reader must know of it in one run, else empty.
    """

    key: str
    title: str
    measure: Measure
    unit: str
    digits: int | None
    better: Literal["low", "high", ""] = ""
    alike: Alike = ""
    note: str = ""
    remark: Callable[[Trial], str] = lambda _: ""

    def remarks(self, trials: Sequence[Trial]) -> str:
        """What a reader must know of it in these runs."""
        return "; ".join(dict.fromkeys(filter(None, map(self.remark, trials))))

    def text(self, value: float) -> str:
        """A value with its unit, for a sentence: ``61.1 %``."""
        return f"{self.number(value)}{self.unit}"

    def cell(self, statistic: Statistic, runs: int = 0) -> str:
        """``61.12``, or over several seeds ``61.12 ± 0.31``; ``(n=1 of 3)`` when not all runs have it.

        Args:
            statistic: the figure.
            runs: how many could have it; those that do when not given.
        """
        shown = self.number(statistic.mean)
        if statistic.std is not None:
            shown += f" ± {self.number(statistic.std, like=statistic.mean)}"
        return shown + (f" (n={statistic.n} of {runs})" if runs > statistic.n else "")

    def number(self, value: float, like: float | None = None) -> str:
        """A value without its unit, with as many decimals as ``like`` would have."""
        digits = self.digits if self.digits is not None else _decimals(value if like is None else like)
        return f"{value:,.{digits}f}"


def _decimals(value: float) -> int:
    """Decimals that show three significant digits."""
    return 2 if value == 0 else max(2 - math.floor(math.log10(abs(value))), 0)


def _pace(trial: Trial) -> str:
    return "by images/s of all ranks, waits included" if pace.own_paces(trial) else ""


def _first_gpu(trial: Trial) -> str:
    return f"of the first of a worker's {trial.gpus_per_worker} GPUs" if trial.gpus_per_worker > 1 else ""


def _percent(key: str, title: str) -> Figure:
    """A share of 1 in the store, shown in percent."""
    return Figure(f"{key}_percent", f"{title} (%)", metric(f"test/{key}", 100.0), " %", 2, "high", "work")


def _seconds(key: str, title: str) -> Figure:
    return Figure(f"{key}_s", f"{title} (s)", metric(f"time/{key}_s"), " s", 2)


TRAINING_TIME = Figure(
    "training_s",
    "Training (s)",
    metric("time/training_s"),
    " s",
    2,
    "low",
    "work",
    "Training is without start-up, data, evaluation and checkpoints.",
)
IMAGES_PER_S = Figure(
    "images_per_s", "Images/s", metric("images_per_s"), " images/s", 1, "high", "", "Images/s are in steady state."
)
ACCURACY, PRECISION, RECALL, F1, SPECIFICITY = (
    _percent(key, title)
    for key, title in (
        ("accuracy", "Accuracy"),
        ("precision", "Precision"),
        ("recall", "Recall"),
        ("f1", "F1"),
        ("specificity", "Specificity"),
    )
)
LOSS = Figure("test_loss", "Test loss", metric("test/loss"), "", 4, "low", "work")
MEMORY = Figure(
    "peak_memory_mib",
    "Peak memory (MiB)",
    metric("peak_memory_mib"),
    " MiB",
    0,
    "low",
    "device",
    "Peak memory of the hungriest worker: GPU memory, or the process's memory on a CPU.",
    _first_gpu,
)
EPOCH_TIME = Figure("epoch_s", "Epoch (s)", metric("time/epoch_mean_s"), " s", 3, "low", "work")
ITERATION_TIME = Figure(
    "iteration_ms",
    "Iteration (ms)",
    pace.iteration(1000.0),
    " ms",
    None,
    "low",
    "step",
    "An iteration is one optimizer step, a mean in steady state.",
    _pace,
)
ITERATION_P95 = Figure("iteration_p95_ms", "95th percentile (ms)", pace.iteration_p95_ms, " ms", None, "low", "step")
STEP_PARTS = tuple(
    Figure(f"step_{part}_ms", f"{title} (ms)", metric(f"time/step_{part}_s", 1000.0), " ms", None)
    for part, title in zip(
        pace.STEP_PARTS, ("Data", "Forward", "Backward", "Exposed communication", "Optimizer"), strict=True
    )
)
NOT_SPLIT = Figure("step_not_split_ms", "Not split (ms)", pace.unsplit_ms, " ms", None)
PHASES = tuple(
    _seconds(key, title)
    for key, title in (
        ("startup", "Start-up"),
        ("data", "Data"),
        ("training", "Training"),
        ("evaluation", "Evaluation"),
        ("checkpoint", "Checkpoints"),
        ("other", "Other"),
    )
)
TOTAL = Figure("wall_s", "Total (s)", aggregate.total_seconds, " s", 2)
BUBBLE = (
    Figure("bubble_percent", "Measured (%)", metric("bubble/measured", 100.0), " %", 1),
    Figure("bubble_theory_percent", "Theory (%)", metric("bubble/theory", 100.0), " %", 1),
)
STALENESS = Figure("staleness_mean_updates", "Mean (updates)", metric("staleness/mean"), "", 2)
MOST_STALE = Figure("staleness_max_updates", "Most (updates)", metric("staleness/max"), "", 0)


def of_rank(figure: Figure, rank: int) -> Figure:
    """What one rank's own replica has of a figure of the test: its loss or its accuracy."""
    name, scale = {LOSS: ("loss", 1.0), ACCURACY: ("accuracy", 100.0)}[figure]
    measure = metric(f"test/{name}_rank{rank}", scale)
    return replace(figure, key=f"{figure.key}_rank{rank}", title=f"Rank {rank}", measure=measure, better="")


def over_ranks(figure: Figure) -> Figure:
    """The mean over all ranks of a figure of the test, of runs that have it of every rank."""

    def read(trial: Trial) -> float | None:
        found = [of_rank(figure, rank).measure(trial) for rank in range(trial.world_size)]
        known = [value for value in found if value is not None]
        return statistics.fmean(known) if len(known) == len(found) else None

    return replace(figure, key=f"{figure.key}_ranks_mean", title="Mean over ranks", measure=read, better="")


def memory_of_rank(rank: int) -> Figure:
    """Peak memory of one worker in MiB."""
    measure = metric(f"peak_memory_mib_rank{rank}")
    return replace(MEMORY, key=f"{MEMORY.key}_rank{rank}", title=f"Rank {rank}", measure=measure, better="")


def utilisation(device: Literal["cpu", "gpu"]) -> Figure:
    """Load of the nodes' CPUs or of the GPUs while a run trained."""
    name = device.upper()
    note = f"{name} load is the mean of the samples while it trained, of whole machines, with whatever else ran there."
    measure = aggregate.utilisation(device)
    return Figure(f"{device}_utilisation_percent", f"{name} load (%)", measure, " %", 1, note=note)


def key_of_target(target: float) -> str:
    """What names of figures and tables begin with that tell the way to a test accuracy, 0 to 1: ``to_60_percent``."""
    return f"to_{target * 100:.4g}_percent"


def to_target(target: float) -> tuple[Figure, Figure]:
    """Seconds and epochs to a test accuracy, 0 to 1."""
    note = "Counted at the end of the first epoch that has it; empty where none has. Seconds of training alone."
    way = key_of_target(target)
    return (
        Figure(f"{way}_s", "Training (s)", aggregate.seconds_to(target), " s", 2, "low", note=note),
        Figure(f"{way}_epochs", "Epochs", aggregate.epochs_to(target), "", 1, "low", "work"),
    )


def cost_of_run(price: Price) -> Figure:
    """What a run costs."""
    note = f"{cost.assumption(price)} Cost uses wall time, counted in a sweep from the start of each run."
    return Figure("cost_usd", "Cost (USD)", cost.of_run(price), " USD a run", None, "low", "work", note)


def cost_of_training(price: Price) -> Figure:
    """What a run costs by images, for runs of unequal work."""
    return replace(
        cost_of_run(price),
        key="cost_per_1000_images_usd",
        title="Cost per 1,000 images (USD)",
        unit=" USD per 1,000 images",
        measure=cost.of_training(price),
        alike="",
    )


def cost_to_target(price: Price, target: float) -> Figure:
    """What the way to a test accuracy costs, by images."""
    measure = cost.per_thousand_images(price, target)
    note = "Cost is that of the training until then, by the images trained on until then."
    title = "Cost per 1,000 images (USD)"
    return Figure(f"{key_of_target(target)}_usd_per_1000_images", title, measure, " USD", None, "low", note=note)
