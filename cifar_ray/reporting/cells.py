"""The entries of a table: how a figure of a configuration becomes a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from cifar_ray.reporting import figures, scaling, task
from cifar_ray.reporting.contents import Entry
from cifar_ray.reporting.figures import EFFICIENCY, ITERATION_TIME, MOST_STALE, SHARE, Figure, Statistic
from cifar_ray.reporting.frame import Configuration
from cifar_ray.reporting.names import Names
from cifar_ray.tracking.study import BOUND_TAG, Run

_COMMON = "over the seeds that both have"


class Group(NamedTuple):
    """The configurations of one model on one data set, from few devices to many, and what they are called."""

    among: Sequence[Configuration]
    names: Names


class Column(NamedTuple):
    """A figure, and what makes its entry for a configuration."""

    figure: Figure
    make: Callable[[Group, Configuration], Entry]


Why = Callable[[Run], str]
"""Why a figure of a run is not known."""


def unrecorded(_: Run) -> str:
    """Why an entry is empty where nothing more is known."""
    return "the run recorded no number"


def measured(config: Configuration, figure: Figure, why: Why = unrecorded) -> Entry:
    """A figure of a configuration over its finished runs; empty, with the reason, when none has it."""
    statistic = config.statistic(figure)
    if statistic is None:
        return Entry(note="; ".join(dict.fromkeys(why(trial) for trial in config.finished)))
    made_for_it = {trial.measure for trial, _ in config.measured(figure)}
    runs = sum(trial.measure in made_for_it for trial in config.finished)
    lacking = f"{runs - statistic.n} of {runs} finished runs do not have it" if statistic.n < runs else ""
    return _entry(figure, statistic, runs, figure.remarks(config.finished), lacking)


def _entry(figure: Figure, statistic: Statistic, runs: int, *notes: str) -> Entry:
    mean, std, n, run_ids = statistic
    note = "; ".join(filter(None, notes))
    return Entry(figure.cell(statistic, runs), mean, std, n, run_ids=run_ids, note=note, partial=runs > n)


def columns(*shown: Figure, why: Why = unrecorded) -> list[Column]:
    """A column for each figure that is read from the runs."""
    return [Column(figure, lambda _, config, figure=figure: measured(config, figure, why)) for figure in shown]  # type: ignore[misc]


def global_batch() -> Column:
    """The global batch size."""
    figure = Figure("global_batch", "Global batch")
    return Column(figure, lambda _, config: Entry(figure.number(config.global_batch_size), config.global_batch_size))


def setting(title: str, read: Callable[[Run], str | None]) -> Column:
    """What its runs were given, in words."""

    def make(_: Group, config: Configuration) -> Entry:
        values = dict.fromkeys(value for trial in config.finished if (value := read(trial)) is not None)
        return Entry(
            ", ".join(values).replace("None", "none"), run_ids=tuple(trial.run_id for trial in config.finished)
        )

    return Column(Figure(title.lower(), title), make)


def micro_batches(trial: Run) -> str | None:
    """Into how many parts a pipeline cuts the batch; whatever else it was given, model_parallel does not cut it."""
    return "1" if trial.strategy == "model_parallel" else trial.params.get("strategy_options.micro_batches")


def bound(trial: Run) -> str | None:
    """What bounds a run, in two or three words; None where its times do not count, or it did not record it."""
    return trial.tags[BOUND_TAG].partition(":")[0] if trial.timed and BOUND_TAG in trial.tags else None


def ratio(figure: Figure) -> Column:
    """Speed-up or efficiency, with what it is against unless that is a single worker of the same kind."""

    def make(group: Group, config: Configuration) -> Entry:
        against = scaling.ratio(config, group.among)
        if against is None:
            return Entry(note=f"{config.runs.task.spec.unit} per second were not recorded" if config.finished else "")
        if against.reference is config and config.devices > 1:
            return Entry(note="nothing with fewer workers and the same seeds to compare with")
        value = against.efficiency if figure is EFFICIENCY else against.speed_up
        like = against.reference.devices == 1 and group.names.series(against.reference) == group.names.series(config)
        runs = len(config.by_seed(config.runs.task.throughput))
        note = "" if like else f"against {group.names.row(against.reference)}"
        return _entry(figure, value, runs, note, _COMMON if runs > value.n else "")

    return Column(figure, make)


def share_of_single(group: Group, config: Configuration) -> Entry:
    """Its iteration as a share of a single worker's; empty without one."""
    runs = len(config.by_seed(ITERATION_TIME))
    if not runs or config.devices == 1:
        return Entry()
    alone = scaling.single_worker(config, group.among, ITERATION_TIME)
    both = scaling.pairs(config, alone, ITERATION_TIME) if alone is not None else None
    if alone is None or both is None or min(both.base) <= 0:
        return Entry(note="no single worker with a global batch of the same size was measured with the same seeds")
    share = Statistic(100 * fmean(both.own) / fmean(both.base), None, len(both.own), both.run_ids)
    return _entry(SHARE, share, runs, f"against {group.names.row(alone)}", _COMMON if runs > share.n else "")


def most_stale(_: Group, config: Configuration) -> Entry:
    """The largest staleness with any seed."""
    entry = measured(config, MOST_STALE)
    if entry.n < 2:
        return entry
    largest = max(value for _, value in config.measured(MOST_STALE))
    note = f"the largest of {entry.n} runs"
    return replace(entry, text=MOST_STALE.number(largest), value=largest, std=None, note=note)


def unreached(target: float) -> Why:
    """Why there is no way to a target."""

    def why(trial: Run) -> str:
        best, epochs, text = task.best(trial), task.epochs_to(trial, target), trial.task.primary.text
        if epochs is not None:
            return f"reached in epoch {epochs:.0f}, but not every epoch until then has its figures recorded"
        if best is None:
            return "not recorded"
        if task.reaches(trial, best, target):
            return f"reached, since the best epoch has {text(best)}, but the epoch is not recorded"
        return f"not reached: the best epoch has {text(best)}"

    return why


def unsplit(trial: Run) -> str:
    """Why a part of its step is not known."""
    recorded = any(part.measure(trial) is not None for part in figures.PARTS)
    return "not measured apart from the rest" if recorded else "the run did not split its steps"


def exceeded(trial: Run) -> str:
    """Why the rest of its step is not known."""
    if ITERATION_TIME.measure(trial) is None:
        return unrecorded(trial)
    if figures.own_paces(trial):
        return "not known where ranks have a pace each: the parts are means over the ranks"
    return "the parts come to more than the mean iteration"


def unsampled(_: Run) -> str:
    """Why a machine's load is not known."""
    return "no sample was taken while it trained"
