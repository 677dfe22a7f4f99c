"""The cells of a table: a figure of a configuration as a reader sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from cifar_ray.reporting import figures, scaling
from cifar_ray.reporting.contents import Entry
from cifar_ray.reporting.figures import EFFICIENCY, ITERATION_TIME, MOST_STALE, SHARE, SPEED_UP, Figure, Statistic
from cifar_ray.reporting.frame import Configuration
from cifar_ray.reporting.names import Names

_COMMON = "over the seeds that both have"


class Group(NamedTuple):
    """The configurations of one model on one data set, from few devices to many, and what they are called."""

    among: Sequence[Configuration]
    names: Names


def entry(figure: Figure, config: Configuration, group: Group) -> Entry:
    """A figure of a configuration, which some figures compare with others of its group."""
    if figure.words is not None:
        words = dict.fromkeys(word for trial in config.finished if (word := figure.words(trial)) is not None)
        run_ids = tuple(trial.run_id for trial in config.finished)
        return Entry(", ".join(words).replace("None", "none"), run_ids=run_ids)
    if figure.key == figures.GLOBAL_BATCH.key:
        return Entry(figure.number(config.global_batch_size), config.global_batch_size)
    if figure.key == figures.RUNS.key:
        return Entry(str(len(config.finished)))
    if figure in (SPEED_UP, EFFICIENCY):
        return _ratio(figure, config, group)
    if figure is SHARE:
        return _share_of_single(config, group)
    return _most_stale(config) if figure is MOST_STALE else measured(config, figure)


def measured(config: Configuration, figure: Figure) -> Entry:
    """A figure of a configuration over its finished runs; empty, with the reason, when none has it."""
    statistic = config.statistic(figure)
    if statistic is None:
        return Entry(note="; ".join(dict.fromkeys(map(figure.why, config.finished))))
    made_for_it = {trial.measure for trial, _ in config.measured(figure)}
    runs = sum(trial.measure in made_for_it for trial in config.finished)
    lacking = f"{runs - statistic.n} of {runs} finished runs do not have it" if statistic.n < runs else ""
    return _entry(figure, statistic, runs, figure.remarks(config.finished), lacking)


def _entry(figure: Figure, statistic: Statistic, runs: int, *notes: str) -> Entry:
    mean, std, n, run_ids = statistic
    note = "; ".join(filter(None, notes))
    return Entry(figure.cell(statistic, runs), mean, std, n, run_ids=run_ids, note=note, partial=runs > n)


def _ratio(figure: Figure, config: Configuration, group: Group) -> Entry:
    """Speed-up or efficiency, with what it is against unless that is a single worker of the same kind."""
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


def _share_of_single(config: Configuration, group: Group) -> Entry:
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


def _most_stale(config: Configuration) -> Entry:
    """The largest staleness with any seed."""
    mean = measured(config, MOST_STALE)
    if mean.n < 2:
        return mean
    largest = max(value for _, value in config.measured(MOST_STALE))
    return replace(mean, text=MOST_STALE.number(largest), value=largest, std=None, note=f"the largest of {mean.n} runs")
