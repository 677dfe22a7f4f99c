"""Runs side by side in a terminal: a row for each difference and main figure, a column for each run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cifar_ray import tracking
from cifar_ray.config import runfile
from cifar_ray.reporting import cautions, cost, frame, pages, tables, words
from cifar_ray.reporting.contents import Entry, Table
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.study import Study, Trial

_SHOWN = ("main", "quality")
_TAGS = ("commit", "hardware")
_IMPLIED = {"world_size", "nodes", "workers_per_node"}  # by the topology
_UNSET = "-"
_COMMIT = 12
_HASH = 8  # digits of a SHA-256
_WIDEST = 24  # characters of a column's heading


@tracking.unchanged()
def compare(
    *runs: str,
    price: str | None = None,
    target: Sequence[float] = (),
    full: bool = False,
    tracking_uri: str | None = None,
) -> str:
    """Compare runs of these names or MLflow ids, as text to print: what ``cifar-ray compare`` shows, by its options.

    Raises:
        ConfigError: when an option is wrong, or there is no such run.
    """
    from cifar_ray.tracking import reading

    node = cost.checked(price, target)
    return "\n".join(terminal(reading.runs(stores.resolve_uri(tracking_uri), runs), node, target, full))


def terminal(study: Study, price: Price | None, targets: Sequence[float], full: bool) -> Iterator[str]:
    """The findings, the cautions and one table, or with ``full`` every table of a report, as lines for a terminal."""
    runs = Runs(study.meant)
    parts = tables.parts(runs, targets, price)
    yield from words.spoken(words.findings(runs, price), cautions.cautions(runs, price))
    if full:
        shown = []
        for section in (part.section for part in parts):
            yield from ("", section.title, *section.notes)
            for table in section.all_tables:
                yield from ("", *pages.lines(table), *table.notes)
                shown.append(table)
        yield from ("", *pages.lines(tables.runs_table(runs.study)))
    else:
        shown = [_across(runs, parts)]
        yield from ("", *pages.lines(shown[0]))
    if any(entry.best for table in shown for _, entries in table.rows for entry in entries):
        yield f"{pages.BEST} marks the best."


def _across(runs: Runs, parts: Sequence[tables.Part]) -> Table:
    """A row for every setting in which the runs differ and for every main figure, a column for every run.

    Runs that differ in the seed alone share a column. Of a single run, every setting is shown.
    """
    rows: dict[str, list[Entry]] = {}
    for name in _settings(runs.study.trials):
        values = [
            dict.fromkeys(_value(trial, name) or _UNSET for trial in config.trials) for config in runs.configurations
        ]
        rows[name] = [Entry(", ".join(of_one)) for of_one in values]
    for filled in (filled for part in parts for filled in part.tables if filled.spec.key in _SHOWN):
        for at, column in enumerate(filled.columns):
            if any(entries[at].n for _, entries in filled.rows):  # else it is a setting
                row = rows.setdefault(column.figure.title, [Entry()] * len(runs.configurations))
                for config, entries in filled.rows:
                    row[config.number] = entries[at]
    title = "Side by side" if len(runs.study.trials) > 1 else "Settings and results"
    return Table("compare", title, ["", *map(_heading, runs.configurations)], list(rows.items()))


def _heading(config: Configuration) -> str:
    name = config.trials[0].name + (f" and {len(config.trials) - 1} more" if len(config.trials) > 1 else "")
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…"


def _settings(trials: Sequence[Trial]) -> list[str]:
    """The settings in which runs differ, whatever their models and data sets; of a single run, all that it has."""
    first = ("status", *frame.PLACED)
    names = {name for trial in trials for name in trial.params} - _IMPLIED - {*runfile.UPKEEP, *first, "seed"}
    differing = []
    for name in (*first, *sorted(names), "seed", *_TAGS):
        values = {_value(trial, name) for trial in trials}
        # A commit or a machine that was not recorded is unknown; a parameter that was not recorded is not set.
        if len(trials) == 1 or len(values - {""} if name in _TAGS else values) > 1:
            differing.append(name)
    return differing


def _value(trial: Trial, name: str) -> str:
    if name == "status":
        return trial.status
    value = trial.tags.get(frame.ORIGIN[name], "") if name in _TAGS else trial.params.get(name, "")
    if name == "commit":
        return value[:_COMMIT] + value[40:]  # 40 digits, and perhaps -dirty
    if value == "None":  # as older runs recorded it
        return ""
    return value[:_HASH] if re.fullmatch("[0-9a-f]{64}", value) else value
