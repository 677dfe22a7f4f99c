"""Runs side by side in a terminal: what differs and every main figure down, the runs across."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cifar_ray.reporting import aggregate, cautions, markdown, tables, words
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.contents import Entry, Table
from cifar_ray.reporting.cost import Price
from cifar_ray.tracking.study import Study, Trial

_SHOWN = ("main", "quality")
_TAGS = {name: aggregate.ORIGIN[name] for name in ("commit", "hardware")}
_WIDEST = 24  # characters of a column's heading


def terminal(study: Study, price: Price | None, targets: Sequence[float], full: bool) -> Iterator[str]:
    """The findings, the cautions and one table, or all of them, as lines for a terminal.

    Args:
        study: the runs.
        price: of one node; None for no costs.
        targets: test accuracies, 0 to 1, for the times to them.
        full: whether to show every table of a report.
    """
    yield from words.spoken(words.findings(study, price), cautions.cautions(study, price))
    if full:
        for section in tables.sections(study, targets, price):
            yield from ("", section.title, *section.notes)
            for table in (*section.tables, *section.folded):
                yield from ("", *markdown.lines(table), *table.notes)
        yield from ("", *markdown.lines(tables.runs_table(study)))
    else:
        yield from ("", *markdown.lines(_across(study, targets, price)))
    yield f"{markdown.BEST} marks the best."


def _across(study: Study, targets: Sequence[float], price: Price | None) -> Table:
    """A row for everything in which the runs differ and for every main figure, a column for every run.

    Runs that differ in the seed alone share a column.
    """
    every = aggregate.configurations(study)
    rows: dict[str, list[Entry]] = {}
    for name in _differing(every):
        rows[name] = [Entry(", ".join(dict.fromkeys(_value(trial, name) for trial in one.trials))) for one in every]
    for group in tables.groups(study):
        for filled in tables.filled(group, targets, price):
            if filled.spec.key in _SHOWN:
                for at, column in enumerate(filled.columns):
                    row = rows.setdefault(column.figure.title, [Entry()] * len(every))
                    for one, entries in filled.rows:
                        row[every.index(one)] = entries[at]
    return Table("compare", "Side by side", ["", *map(_heading, every)], list(rows.items()))


def _heading(one: Configuration) -> str:
    name = one.trials[0].name + (f" and {len(one.trials) - 1} more" if len(one.trials) > 1 else "")
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…"


def _differing(every: Sequence[Configuration]) -> list[str]:
    """What tells the runs apart: their state, the parameters that a figure depends on, the program and the machine."""
    trials = [trial for one in every for trial in one.trials]
    others = dict.fromkeys(name for one in every for name, _ in one.others)
    names = ("status", "model", "dataset", "topology", "batch_size", *others, "seed", *_TAGS)
    return [name for name in names if len({_value(trial, name) for trial in trials} - {""}) > 1]


def _value(trial: Trial, name: str) -> str:
    if name == "status":
        return trial.status
    return trial.tags.get(_TAGS[name], "")[:_WIDEST] if name in _TAGS else trial.params.get(name, "")
