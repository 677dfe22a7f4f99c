"""The figures that reports show: how each is read from a run, which way is better, and how it is written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from cifar_ray import tasks
from cifar_ray.config import limits
from cifar_ray.tracking.study import BOUND_SHARE, BOUND_TAG, LOAD, Run
from cifar_ray.training.rank_times import PHASES

Measure = Callable[[Run], "float | None"]
"""One figure of one run; None when it was not measured."""

ASYNCHRONOUS = ("parameter_server", "hogwild")  # strategies whose workers do not wait for each other
STEP_PARTS = ("data", "forward", "backward", "communication", "optimizer")
"""Parts of one optimizer step, in their order; of the communication, what the backward pass does not hide."""

_PHASE_TITLES = ("Start-up", "Data", "Training", "Evaluation", "Checkpoints", "Other")


class Statistic(NamedTuple):
    """A figure of one configuration over its seeds: mean, sample standard deviation (None for one run), count."""

    mean: float
    std: float | None
    n: int
    run_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Sequence[float], run_ids: tuple[str, ...] = ()) -> Statistic:
        """Of one value or more; between infinite ones the standard deviation is not a number."""
        std = None
        if len(values) > 1:
            std = statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
        return cls(statistics.fmean(values), std, len(values), run_ids)


@dataclass(frozen=True)
class Figure:
    """One figure of a run.

    Attributes:
        key: short name with its unit at the end, as in ``figures.csv``; no two figures of a report have the same.
        measure: reads it from a run, in the unit of the title.
        unit: what follows the number in a sentence, such as `` s``.
        digits: decimals; None for three significant digits.
        better: which way is better; empty when neither is.
        alike: what runs must share to be compared by it: how much they trained on, the global batch, or the device.
        note: what a reader must know of it.
        of: the task's figure that it shows, if it is one.
        subset: the samples that this one is counted on.
        entry: how a table reads it from a configuration and its group, where that is no mean over the runs.
    """

    key: str
    title: str
    measure: Measure = lambda _: None
    unit: str = ""
    digits: int | None = 0
    better: Literal["low", "high", ""] = ""
    alike: Literal["", "work", "step", "device"] = ""
    note: str = ""
    of: tasks.Figure | None = None
    subset: tasks.Subset = "test"
    entry: Callable[..., Any] | None = None

    def known(self, trial: Run) -> float | None:
        """Its value in a run; None when it was not measured or is not a number."""
        value = self.measure(trial)
        return None if value is None or math.isnan(value) else float(value)

    def text(self, value: float) -> str:
        """A value with its unit, for a sentence: ``61.1 %``."""
        return f"{self.number(value)}{self.unit}"

    def difference(self, value: float, decimals: int = 1) -> str:
        """A difference of two values with its unit: ``3.3 points``, of percentages with so many decimals."""
        return f"{value:.{decimals}f} points" if self.unit == " %" else self.text(value)

    def cell(self, statistic: Statistic, runs: int = 0) -> str:
        """``61.12``, or over several seeds ``61.12 ± 0.31``; ``(n=1 of 3)`` when not all ``runs`` have it."""
        shown = self.number(statistic.mean)
        if statistic.std is not None:
            shown += f" ± {self.number(statistic.std, like=statistic.mean)}"
        return shown + (f" (n={statistic.n} of {runs})" if runs > statistic.n else "")

    def number(self, value: float, like: float | None = None) -> str:
        """A value without its unit, with as many decimals as ``like`` would have."""
        digits, shown = self.digits, value if like is None else like
        if digits is None:
            digits = 2 if shown == 0 or not math.isfinite(shown) else max(2 - math.floor(math.log10(abs(shown))), 0)
        return f"{value:,.{digits}f}"


def metric(name: str, scale: float = 1.0) -> Measure:
    """The last recorded value of a metric, times ``scale``."""

    def read(trial: Run) -> float | None:
        value = trial.metrics.get(name)
        # In decimal: 0.57 is 57 %, and 0.57 * 100 is 56.99999999999999.
        return None if value is None else float(Decimal(str(value)) * Decimal(str(scale)))

    return read


def result(of: tasks.Figure, scale: float = 1.0) -> Measure:
    """A task's figure on the test, times ``scale``: of the chosen checkpoint if there is one, else of the last."""
    return lambda trial: metric(of.result(trial.metrics), scale)(trial)


def by_step(trial: Run, name: str) -> dict[int, float]:
    """A history with one value per step; a continued run may have recorded an epoch twice."""
    return {point.step: point.value for point in trial.history.get(name, ())}


def trained(trial: Run) -> float | None:
    """Images in all the steps of a run, each as often as it was trained on; None when that was not recorded."""
    rate, last = trial.metrics.get(trial.task.epoch_throughput), trial.metrics.get("epoch_s")
    epochs = max({**by_step(trial, "epoch_s"), **by_step(trial, trial.task.primary.metric)}, default=0)
    if not epochs or rate is None or last is None or not math.isfinite(rate * last):
        return None
    return epochs * round(rate * last)


def total_seconds(trial: Run) -> float | None:
    """Wall time of a run; where it was not recorded, seconds of all phases together; None unless all were recorded."""
    seconds = [trial.metrics.get(f"time/{phase}_s") for phase in PHASES]
    known = [second for second in seconds if second is not None]
    return trial.metrics.get("time/wall_s", sum(known) if len(known) == len(seconds) else None)


def own_paces(trial: Run) -> bool:
    """Whether its ranks have a pace each, so that none of them is the run's."""
    return trial.strategy in ASYNCHRONOUS and trial.world_size > 1


def iteration_ms(trial: Run) -> float | None:
    """Mean milliseconds of an optimizer step in steady state.

    The recorded time is rank 0's. Where every rank has its own pace, it is what a global batch takes all of them, the
    wait for the slowest included.
    """
    if not own_paces(trial):
        return metric("time/iteration_mean_s", 1000.0)(trial)
    throughput = trial.metrics.get(trial.task.throughput)
    return trial.global_batch_size / throughput * 1000.0 if throughput else None


def _not_split_ms(trial: Run) -> float | None:
    """Milliseconds of a mean iteration that none of its parts accounts for; None where these exceed it."""
    whole = trial.metrics.get("time/iteration_mean_s")
    if whole is None or own_paces(trial):
        return None
    rest = whole - sum(trial.metrics.get(f"time/step_{part}_s", 0.0) for part in STEP_PARTS)
    return 1000 * max(rest, 0.0) if rest >= -1e-6 else None  # but for rounding


def _bound_percent(trial: Run) -> float | None:
    """What the bound costs; None where only an earlier process of the run could tell."""
    known = not trial.tags.get(BOUND_TAG, "").startswith("not enough evidence")
    return metric(BOUND_SHARE, 100.0)(trial) if known else None


def _p95_ms(trial: Run) -> float | None:
    return None if own_paces(trial) else metric("time/iteration_p95_s", 1000.0)(trial)


def _load(trial: Run, device: str) -> float | None:
    """Mean load in percent of the samples between the first and the last record of the training."""
    times = [point.timestamp_ms for name in ("train/loss", "epoch_s") for point in trial.history.get(name, ())]
    names = [name for name in trial.history if (match := LOAD.fullmatch(name)) and match[1] == device]
    samples = [point for name in names for point in trial.history[name]]
    loads = [sample.value for sample in samples if times and min(times) <= sample.timestamp_ms <= max(times)]
    return statistics.fmean(loads) if loads else None


def micro_batches(trial: Run) -> str | None:
    """Into how many parts a pipeline cuts the batch; whatever else it was given, model_parallel does not cut it."""
    return "1" if trial.strategy == "model_parallel" else trial.params.get("strategy_options.micro_batches")


_TRAINING = "Training is without start-up, data, evaluation and checkpoints."
_MEMORY = "Peak memory of the hungriest worker: that of its first GPU, or the process's memory on a CPU."
_ITERATION = "An iteration is one optimizer step, a mean in steady state; of asynchronous ranks, a global batch of all."

TRAINING_TIME = Figure("training_s", "Training (s)", metric("time/training_s"), " s", 2, "low", "work", _TRAINING)
LOSS = Figure("test_loss", "Test loss", result(tasks.LOSS), "", 4, "low", "work", of=tasks.LOSS)
MEMORY = Figure("peak_memory_mib", "Peak memory (MiB)", metric("peak_memory_mib"), " MiB", 0, "low", "device", _MEMORY)
EPOCH_TIME = Figure("epoch_s", "Epoch (s)", metric("time/epoch_mean_s"), " s", 3, "low", "work")
ITERATION_TIME = Figure("iteration_ms", "Iteration (ms)", iteration_ms, " ms", None, "low", "step", _ITERATION)
ITERATION_P95 = Figure("iteration_p95_ms", "95th percentile (ms)", _p95_ms, " ms", None, "low", "step")
PARTS = tuple(
    Figure(f"step_{part}_ms", f"{title} (ms)", metric(f"time/step_{part}_s", 1000.0), " ms", None)
    for part, title in zip(STEP_PARTS, ("Data", "Forward", "Backward", "Exposed communication", "Optimizer"))
)
BOUND_COST = Figure("bound_percent", "Costs (% of training)", _bound_percent, " %")
NOT_SPLIT = Figure("step_not_split_ms", "Not split (ms)", _not_split_ms, " ms", None)
PHASE_TIMES = tuple(
    Figure(f"{key}_s", f"{title} (s)", metric(f"time/{key}_s"), " s", 2)
    for key, title in zip((*PHASES, "other"), _PHASE_TITLES, strict=True)
)
TOTAL = Figure("wall_s", "Total (s)", total_seconds, " s", 2)
BUBBLE = (
    Figure("bubble_percent", "Measured (%)", metric("bubble/measured", 100.0), " %", 1),
    Figure("bubble_theory_percent", "Theory (%)", metric("bubble/theory", 100.0), " %", 1),
)
STALENESS = Figure("staleness_mean_updates", "Mean (updates)", metric("staleness/mean"), "", 2)


def of_rank(figure: Figure, rank: int) -> Figure:
    """What one rank has of a figure: what its own replica has learned, or its memory."""
    name, scale = (figure.of.metric, 100.0 if figure.of.percent else 1.0) if figure.of else (figure.key, 1.0)
    measure = metric(f"{name}_rank{rank}", scale)
    return replace(figure, key=f"{figure.key}_rank{rank}", title=f"Rank {rank}", measure=measure, better="")


def over_ranks(figure: Figure) -> Figure:
    """The mean over all ranks of a figure of the test, of runs that have it of every rank."""

    def read(trial: Run) -> float | None:
        values = [of_rank(figure, rank).measure(trial) for rank in range(trial.world_size)]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(values) else None

    return replace(figure, key=f"{figure.key}_ranks_mean", title="Mean over ranks", measure=read, better="")


def load(device: Literal["cpu", "gpu"]) -> Figure:
    """Load of the nodes' CPUs or of the GPUs while a run trained."""
    name = device.upper()
    note = f"{name} load is the mean of the samples while it trained, of whole machines, with whatever else ran there."
    key, title = f"{device}_utilisation_percent", f"{name} load (%)"
    return Figure(key, title, lambda trial: _load(trial, device), " %", 1, note=note)


def cost_of_run(price: float) -> Figure:
    """What a run costs: all its nodes for its wall time."""
    note = f"Cost: {price:g} USD per node and hour, by wall time, counted in a sweep from the start of each run."

    def paid(trial: Run) -> float | None:
        seconds = total_seconds(trial)
        return None if seconds is None else limits.cost(price, trial.nodes * seconds)

    return Figure("cost_usd", "Cost (USD)", paid, " USD a run", None, "low", "work", note)
