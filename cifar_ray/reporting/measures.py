"""The figures that tables show: how each is read from a run, which way is better, and how it is written."""

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


@dataclass(frozen=True)
class Figure:
    """One figure of a run.

    Attributes:
        key: short name with its unit at the end; part of a CSV file's name.
        title: what it is, with its unit.
        measure: reads it from a run, in the unit of the title.
        unit: what follows the number, such as `` s``.
        digits: decimals; None for three significant digits.
        better: which way is better; empty when neither is.
        notes: what a reader must know of it.
        remark: what a reader must know of it in one run, else empty.
        equal_work: whether it grows with the images trained on, so that there is a best only of equally many.
    """

    key: str
    title: str
    measure: Measure
    unit: str
    digits: int | None
    better: Literal["low", "high", ""]
    notes: Sequence[str] = ()
    remark: Callable[[Trial], str] = lambda _: ""
    equal_work: bool = False

    def remarks(self, trials: Sequence[Trial]) -> list[str]:
        """What a reader must know of it in these runs."""
        return list(dict.fromkeys(filter(None, map(self.remark, trials))))

    def text(self, statistic: Statistic, runs: int = 0) -> str:
        """``61.12 %``, or over several seeds ``61.12 % ± 0.31 (n=3)``; ``(n=1 of 3)`` when not all runs have it.

        Args:
            statistic: the figure.
            runs: how many could have it; those that do when not given.
        """
        shown = f"{self.number(statistic.mean)}{self.unit}"
        count = f"n={statistic.n}" + (f" of {runs}" if runs > statistic.n else "")
        if statistic.std is not None:
            return f"{shown} ± {self.number(statistic.std, like=statistic.mean)} ({count})"
        return f"{shown} ({count})" if runs > statistic.n else shown

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


def percent(key: str, title: str, name: str) -> Figure:
    """A share of 1 in the store, shown in percent."""
    return Figure(f"{key}_percent", f"{title} (%)", metric(name, 100.0), " %", 2, "high", equal_work=True)


TRAINING_TIME = Figure(
    "training_time_s",
    "Training time (s)",
    metric("time/training_s"),
    " s",
    2,
    "low",
    ("Seconds of training alone, without start-up, data, evaluation and checkpoints.",),
    equal_work=True,
)
ACCURACY = percent("accuracy", "Test accuracy after the last epoch", "test/accuracy")
QUALITY = (
    ACCURACY,
    percent("precision", "Test precision, macro average", "test/precision"),
    percent("recall", "Test recall, macro average", "test/recall"),
    percent("f1", "Test F1, macro average", "test/f1"),
    percent("specificity", "Test specificity, macro average", "test/specificity"),
)
EPOCH_TIME = Figure(
    "time_per_epoch_s", "Training time per epoch (s)", metric("time/epoch_mean_s"), " s", 3, "low", equal_work=True
)
ITERATION_TIME = Figure(
    "time_per_iteration_ms",
    "Time per iteration (ms)",
    pace.iteration(1000.0),
    " ms",
    2,
    "low",
    ("Mean in steady state; an iteration is one optimizer step.",),
    _pace,
)
ITERATION_P95 = Figure("p95_ms", "95th percentile (ms)", pace.iteration_p95_ms, " ms", 2, "low")
SECONDS_PER_ITERATION = Figure(
    "s_per_iteration",
    "Seconds per iteration",
    pace.iteration(),
    " s",
    None,
    "low",
    ITERATION_TIME.notes,
    _pace,
)
STEP_PARTS = tuple(
    Figure(f"{part}_ms", title, metric(f"time/step_{part}_s", 1000.0), " ms", None, "")
    for part, title in zip(
        pace.STEP_PARTS, ("Data", "Forward", "Backward", "Exposed communication", "Optimizer"), strict=True
    )
)
NOT_SPLIT = Figure("not_split_ms", "Not split", pace.unsplit_ms, " ms", None, "")
IMAGES_PER_S = Figure(
    "images_per_s",
    "Images per second",
    metric("images_per_s"),
    "/s",
    1,
    "high",
    ("Over all workers, in steady state.",),
)
LOSS = Figure("test_loss", "Test loss after the last epoch", metric("test/loss"), "", 4, "low", equal_work=True)
MEMORY = Figure(
    "peak_memory_mib",
    "Peak memory of one worker (MiB)",
    metric("peak_memory_mib"),
    " MiB",
    0,
    "low",
    ("Of the worker that took most: of its GPU where it has one, else of its process.",),
    _first_gpu,
)
PHASES = tuple(
    Figure(f"{name}_s", title, metric(f"time/{name}_s"), " s", 2, "")
    for name, title in (
        ("startup", "Start-up"),
        ("data", "Data"),
        ("training", "Training"),
        ("evaluation", "Evaluation"),
        ("checkpoint", "Checkpoints"),
        ("other", "Other"),
    )
)
TOTAL = Figure("total_s", "Total", aggregate.total_seconds, " s", 2, "")
BUBBLE = (
    Figure("bubble_measured_percent", "Measured", metric("bubble/measured", 100.0), " %", 1, ""),
    Figure("bubble_theory_percent", "Theory", metric("bubble/theory", 100.0), " %", 1, ""),
)
STALENESS = (
    Figure("staleness_mean_updates", "Mean", metric("staleness/mean"), "", 2, ""),
    Figure("staleness_max_updates", "Most", metric("staleness/max"), "", 0, ""),
)


def of_rank(figure: Figure, rank: int) -> Figure:
    """What one rank's own replica has of a figure of the test: its loss or its accuracy."""
    name, scale = {LOSS: ("loss", 1.0), ACCURACY: ("accuracy", 100.0)}[figure]
    return replace(figure, title=f"Rank {rank}", measure=metric(f"test/{name}_rank{rank}", scale), better="")


def over_ranks(figure: Figure) -> Figure:
    """The mean over all ranks of a figure of the test, of runs that have it of every rank."""

    def read(trial: Trial) -> float | None:
        found = [of_rank(figure, rank).measure(trial) for rank in range(trial.world_size)]
        known = [value for value in found if value is not None]
        return statistics.fmean(known) if len(known) == len(found) else None

    return replace(figure, title="Mean over ranks", measure=read, better="")


def memory_of_rank(rank: int) -> Figure:
    """Peak memory of one worker in MiB."""
    return replace(MEMORY, title=f"Rank {rank}", measure=metric(f"peak_memory_mib_rank{rank}"))


def utilisation(device: Literal["cpu", "gpu"]) -> Figure:
    """Load of the nodes' CPUs or of the GPUs while a run trained."""
    return Figure(
        f"{device}_utilisation_percent",
        f"{device.upper()} utilisation during training (%)",
        aggregate.utilisation(device),
        " %",
        1,
        "",
        (
            f"Mean of the {device.upper()} samples between the first and the last record of the training, "
            "of whole machines, with whatever else ran on them.",
        ),
    )


def to_target(target: float) -> tuple[Figure, Figure]:
    """Seconds and epochs to a test accuracy, 0 to 1."""
    reached = f"{target * 100:.4g} % test accuracy"
    note = "Counted at the end of the first epoch that has it; empty where none has."
    return (
        Figure(
            "time_to_target_s",
            f"Training time to {reached} (s)",
            aggregate.seconds_to(target),
            " s",
            2,
            "low",
            (f"{note} Seconds of training alone.",),
        ),
        Figure(
            "epochs_to_target",
            f"Epochs to {reached}",
            aggregate.epochs_to(target),
            "",
            1,
            "low",
            (note,),
            equal_work=True,
        ),
    )


def cost_of_run(price: Price) -> Figure:
    """What a run costs."""
    notes = (
        cost.assumption(price),
        "Counted is the run's wall time; in a sweep, it begins when the run is taken up.",
    )
    return Figure(
        "cost_of_run_usd", "Cost of a run (USD)", cost.of_run(price), " USD", None, "low", notes, equal_work=True
    )


def cost_of_training(price: Price) -> Figure:
    """What a run costs by images, for runs of unequal work."""
    whole = cost_of_run(price)
    return replace(
        whole,
        key="cost_of_training_usd",
        title="Cost per 1,000 images trained on (USD)",
        measure=cost.of_training(price),
        equal_work=False,
    )


def cost_to_target(price: Price, target: float) -> Figure:
    """What the way to a test accuracy costs, by images."""
    return Figure(
        "cost_per_1000_images_usd",
        f"Cost per 1,000 images at {target * 100:.4g} % test accuracy (USD)",
        cost.per_thousand_images(price, target),
        " USD",
        None,
        "low",
        (
            cost.assumption(price),
            "The training until that accuracy, divided by the images trained on until then.",
        ),
    )
