"""The cells of a table: a figure of a configuration as a reader sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from cifar_ray.reporting import figures, scaling
from cifar_ray.reporting.contents import Entry
from cifar_ray.reporting.figures import ITERATION_TIME, Figure, Statistic, metric
from cifar_ray.reporting.frame import Configuration
from cifar_ray.reporting.names import Names
from cifar_ray.tracking.study import BOUND_TAG, Run


class Group(NamedTuple):
    """The configurations of one model on one data set, from few devices to many, and what they are called."""

    among: Sequence[Configuration]
    names: Names


def entry(figure: Figure, config: Configuration, group: Group) -> Entry:
    """A figure of a configuration, which some figures compare with others of its group."""
    found: Entry = figure.entry(figure, config, group) if figure.entry else measured(config, figure)
    return found


def measured(config: Configuration, figure: Figure) -> Entry:
    """A figure of a configuration over its finished runs; empty when none has it."""
    statistic = config.statistic(figure)
    if statistic is None:
        return Entry()
    made_for_it = {trial.measure for trial, _ in config.measured(figure)}
    return _entry(figure, statistic, sum(trial.measure in made_for_it for trial in config.finished))


def _entry(figure: Figure, statistic: Statistic, runs: int, note: str = "") -> Entry:
    mean, std, n, run_ids = statistic
    return Entry(figure.cell(statistic, runs), mean, std, n, run_ids=run_ids, note=note, partial=runs > n)


def _ratio(figure: Figure, config: Configuration, group: Group) -> Entry:
    """Speed-up or efficiency, with what it is against unless that is a single worker of the same kind."""
    against = scaling.ratio(config, group.among)
    if against is None or (against.reference is config and config.devices > 1):
        return Entry()
    value = against.efficiency if figure is EFFICIENCY else against.speed_up
    like = against.reference.devices == 1 and group.names.series(against.reference) == group.names.series(config)
    note = "" if like else f"against {group.names.row(against.reference)}"
    return _entry(figure, value, len(config.by_seed(config.runs.task.throughput)), note)


def _share_of_single(figure: Figure, config: Configuration, group: Group) -> Entry:
    """Its iteration as a share of a single worker's; empty without one."""
    alone = scaling.single_worker(config, group.among, ITERATION_TIME)
    both = scaling.pairs(config, alone, ITERATION_TIME) if alone is not None and config.devices > 1 else None
    if alone is None or both is None or min(both.base) <= 0:
        return Entry()
    share = both.ratio._replace(mean=100 * both.ratio.mean, std=None)
    return _entry(figure, share, len(config.by_seed(ITERATION_TIME)), f"against {group.names.row(alone)}")


def _largest(figure: Figure, config: Configuration, _: Group) -> Entry:
    """The largest value with any seed."""
    mean, values = measured(config, figure), [value for _, value in config.measured(figure)]
    return replace(mean, text=figure.number(max(values)), value=max(values), std=None) if values else mean


def _setting(title: str, read: Callable[[Run], str | None]) -> Figure:
    """What runs were given; no number is read from it."""

    def given(_: Figure, config: Configuration, group: Group) -> Entry:
        words = dict.fromkeys(word for trial in config.finished if (word := read(trial)) is not None)
        return Entry(", ".join(words).replace("None", "none"))

    return Figure(title.lower(), title, entry=given)


def _bound(trial: Run) -> str | None:
    """What bounds a run, in two or three words; None where its times do not count, or it did not record it."""
    return trial.tags[BOUND_TAG].partition(":")[0] if trial.timed and BOUND_TAG in trial.tags else None


def _batch(figure: Figure, config: Configuration, _: Group) -> Entry:
    return Entry(figure.number(config.global_batch_size), config.global_batch_size)


RUNS = Figure("n", "n", entry=lambda _, config, group: Entry(str(len(config.finished))))
GLOBAL_BATCH = Figure("global_batch", "Global batch", entry=_batch)
SPEED_UP = Figure("speed_up", "Speed-up (times)", unit=" times", digits=2, better="high", entry=_ratio)
EFFICIENCY = Figure("scaling_efficiency_percent", "Efficiency (%)", unit=" %", digits=1, entry=_ratio)
SHARE = Figure("share_of_single_percent", "Share of a single worker's (%)", unit=" %", digits=1, entry=_share_of_single)
MOST_STALE = Figure("staleness_max_updates", "Most (updates)", metric("staleness/max"), entry=_largest)
BOUND = _setting("Bound", _bound)
MICRO_BATCHES = _setting("Micro-batches", figures.micro_batches)
