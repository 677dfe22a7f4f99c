"""The entries of a table: how a figure of a configuration becomes a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from cifar_ray.reporting import aggregate, measures, pace, scaling
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.contents import Entry
from cifar_ray.reporting.measures import ITERATION_TIME, Figure
from cifar_ray.reporting.names import Names
from cifar_ray.tracking.study import Study, Trial

# These are read from two configurations; here is how they are called and written.
SPEED_UP = Figure("speed_up", "Speed-up (times)", lambda _: None, " times", 2, "high")
EFFICIENCY = Figure("scaling_efficiency_percent", "Efficiency (%)", lambda _: None, " %", 1)
_COMMON = "over the seeds that both have"
SHARE = Figure("share_of_single_percent", "Share of a single worker's (%)", lambda _: None, " %", 1)


class Group(NamedTuple):
    """The configurations of one model on one data set, from few devices to many, and what they are called."""

    study: Study
    among: Sequence[Configuration]
    names: Names


Make = Callable[[Group, Configuration], Entry]
Why = Callable[[Trial], str]


class Column(NamedTuple):
    """A figure, and what makes its entry for a configuration."""

    figure: Figure
    make: Make


def measured(one: Configuration, figure: Figure, why: Why) -> Entry:
    """A figure of a configuration over its finished runs; empty, with the reason, when none has it."""
    found = one.statistic(figure.measure)
    if found is None:
        return Entry(note="; ".join(dict.fromkeys(why(trial) for trial in one.finished)))
    made_for_it = {trial.measure for trial in one.finished if trial.run_id in found.run_ids}
    runs = sum(trial.measure in made_for_it for trial in one.finished)
    lacking = f"{runs - found.n} of {runs} finished runs do not have it" if found.n < runs else ""
    note = "; ".join(filter(None, (figure.remarks(one.finished), lacking)))
    return _entry(figure, found, note, runs)


def _entry(figure: Figure, found: Statistic, note: str = "", runs: int = 0) -> Entry:
    text = figure.cell(found, runs)
    return Entry(text, found.mean, found.std, found.n, run_ids=found.run_ids, note=note, partial=runs > found.n)


def unrecorded(_: Trial) -> str:
    """Why an entry is empty where nothing more is known."""
    return "the run did not record it"


def unsampled(_: Trial) -> str:
    """Why a machine's load is not known."""
    return "no sample was taken while it trained"


def columns(*figures: Figure, why: Why = unrecorded) -> list[Column]:
    """A column for each figure that is read from the runs."""

    def column(figure: Figure) -> Column:
        return Column(figure, lambda _, one: measured(one, figure, why))

    return [column(figure) for figure in figures]


def count(title: str, of: Callable[[Configuration], int]) -> Column:
    """A number that a configuration was given."""
    figure = Figure(title.lower().replace(" ", "_"), title, lambda _: None, "", 0)
    return Column(figure, lambda _, one: Entry(figure.number(of(one)), of(one)))


def setting(title: str, read: Callable[[Trial], str | None]) -> Column:
    """A parameter that its runs were given, in words."""

    def make(_: Group, one: Configuration) -> Entry:
        values = dict.fromkeys(value for trial in one.finished if (value := read(trial)) is not None)
        return Entry(", ".join(values).replace("None", "none"), run_ids=tuple(trial.run_id for trial in one.finished))

    return Column(Figure(title.lower(), title, lambda _: None, "", 0), make)


def parameter(name: str) -> Callable[[Trial], str | None]:
    """Reads a parameter of a run."""
    return lambda trial: trial.params.get(name)


def micro_batches(trial: Trial) -> str | None:
    """Into how many parts a pipeline cuts the batch; whatever else it was given, model_parallel does not cut it."""
    return "1" if trial.strategy == "model_parallel" else trial.params.get("micro_batches")


def ratio(figure: Figure, group: Group, one: Configuration) -> Entry:
    """Speed-up or efficiency, with what it is against unless that is a single worker of the same kind."""
    found = scaling.ratio(group.study, one, group.among)
    if found is None:
        return Entry(note="images per second were not recorded" if one.finished else "")
    if found.reference is one and one.devices > 1:
        return Entry(note="nothing with fewer workers and the same seeds to compare with")
    value = found.efficiency if figure is EFFICIENCY else found.speed_up
    like = found.reference.devices == 1 and group.names.series(found.reference) == group.names.series(one)
    runs = len(scaling.by_seed(one, measures.IMAGES_PER_S.measure))
    note = "" if like else f"against {group.names.row(found.reference)}"
    return _entry(figure, value, "; ".join(filter(None, (note, _COMMON if runs > value.n else ""))), runs)


def share_of_single(group: Group, one: Configuration) -> Entry:
    """Its iteration as a share of a single worker's; empty without one."""
    measure = ITERATION_TIME.measure
    runs = len(scaling.by_seed(one, measure))
    if not runs or one.devices == 1:
        return Entry()
    alone = scaling.single_worker(one, group.among, measure)
    both = scaling.pairs(one, alone, measure) if alone is not None else None
    if alone is None or both is None or min(both.base) <= 0:
        return Entry(note="no single worker with a global batch of the same size was measured with the same seeds")
    share = Statistic(100 * fmean(both.own) / fmean(both.base), None, len(both.own), both.run_ids)
    note = f"against {group.names.row(alone)}" + (f"; {_COMMON}" if runs > share.n else "")
    return _entry(SHARE, share, note, runs)


def most_stale(_: Group, one: Configuration) -> Entry:
    """The largest staleness with any seed."""
    entry = measured(one, measures.MOST_STALE, unrecorded)
    if entry.n < 2:
        return entry
    largest = max(value for trial in one.finished if (value := measures.MOST_STALE.measure(trial)) is not None)
    note = f"the largest of {entry.n} runs"
    return replace(entry, text=measures.MOST_STALE.number(largest), value=largest, std=None, note=note)


def unreached(target: float) -> Why:
    """Why there is no way to a target accuracy, 0 to 1."""

    def why(trial: Trial) -> str:
        best, epochs = aggregate.best_accuracy(trial), aggregate.epochs_to(target)(trial)
        if epochs is not None:
            return f"reached in epoch {epochs:.0f}, but not every epoch until then has its figures recorded"
        if best is None:
            return "not recorded"
        if aggregate.reaches(best, target):
            return f"reached, since the best epoch has {best:.2%}, but the epoch is not recorded"
        return f"not reached: the best epoch has {best:.2%}"

    return why


def unsplit(trial: Trial) -> str:
    """Why a part of its step is not known."""
    recorded = any(part.measure(trial) is not None for part in measures.STEP_PARTS)
    return "not measured apart from the rest" if recorded else "the run did not split its steps"


def exceeded(trial: Trial) -> str:
    """Why the rest of its step is not known."""
    if ITERATION_TIME.measure(trial) is None:
        return unrecorded(trial)
    if pace.own_paces(trial):
        return "not known where ranks have a pace each: the parts are means over the ranks"
    return "the parts come to more than the mean iteration"
