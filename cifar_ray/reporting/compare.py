"""Runs side by side: a row for each difference and main figure, a column for each run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from cifar_ray import tracking
from cifar_ray.config import keywords
from cifar_ray.config.errors import printable
from cifar_ray.config.schema import Numbers, Positive
from cifar_ray.reporting import frame, pages, report, tables, words
from cifar_ray.reporting.contents import Entry, Report, Section, Table
from cifar_ray.reporting.frame import Configuration, Runs
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.study import Run, Sweep

_SHOWN = ("_main", "_quality")
_TAGS = ("commit", "hardware")
_IMPLIED = {"world_size", "nodes", "workers_per_node"}  # by the topology
_HASH = 8  # digits of a SHA-256


@dataclass(frozen=True, kw_only=True)
class Comparison(Report):
    """Runs side by side; as text, what ``cifar-ray compare`` prints.

    Attributes:
        data: beside a report's ``runs`` and ``figures``, the frame ``side_by_side``: a row for each difference and each
            main figure, a column for each run, as text.
        side_by_side: that frame as a table, with the best marked.
        full: whether the text has every table of a report instead.
    """

    side_by_side: Table
    full: bool = False

    def __repr__(self) -> str:
        return printable("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        yield from words.spoken(self.findings, self.cautions)
        sections = self.sections if self.full else [Section("", [self.side_by_side])]
        for section in sections:
            yield from ("", section.title, *section.notes) if self.full else ()
            for table in section.all_tables:
                yield from ("", *pages.lines(table), *table.notes)
        if self.full:
            yield from ("", *pages.lines(self.runs))
        printed = [table for section in sections for table in section.all_tables]
        if any(entry.best for table in printed for _, entries in table.rows for entry in entries):
            yield f"{pages.BEST} marks the best."


@tracking.unchanged()
@keywords.checked
def compare(
    *runs: str,
    price: Positive | None = None,
    target: Numbers = (),
    full: bool = False,
    tracking_uri: str | None = None,
) -> Comparison:
    """Compare runs.

    The result's ``data["side_by_side"]``, ``["runs"]`` and ``["figures"]`` are pandas frames; ``print`` shows what
    ``cifar-ray compare`` does.

    Args:
        runs: Names or MLflow ids of runs.
        target: Values of the task's main test figure, a share as 0 to 1, for which to show the time to reach them.
            Default: a share that all runs of a model reach.
        full: Show every table of a report, not only the main figures.

    Raises:
        ConfigError: when an option is wrong, or there is no such run.
    """
    from cifar_ray.tracking import reading

    study = reading.runs(stores.resolve_uri(tracking_uri), runs)
    TaskFigures(study.task).check(target)
    return build(study, price, target, full)


def build(study: Sweep, price: float | None = None, targets: Sequence[float] = (), full: bool = False) -> Comparison:
    """The comparison of a study's runs."""
    runs = Runs(study.meant)
    parts = tables.parts(runs, targets, price)
    results = report.results(runs, parts, price)
    rows = _side_by_side(runs, parts)
    texts = {label: [entry.text for entry in entries] for label, entries in rows.items()}
    columns = _columns(runs.configurations)
    title = "Side by side" if len(study.trials) > 1 else "Settings and results"
    data = {"side_by_side": pd.DataFrame.from_dict(texts, orient="index", columns=columns), **results.data}
    table = Table("side_by_side", title, ["", *columns], list(rows.items()))
    return Comparison(**{**vars(results), "data": data}, side_by_side=table, full=full)


def _side_by_side(runs: Runs, parts: Sequence[tables.Part]) -> dict[str, list[Entry]]:
    """A row for every setting in which the runs differ and for every main figure, an entry for every configuration."""
    rows = {
        name: [
            Entry(", ".join(dict.fromkeys(value(trial, name) or "-" for trial in config.trials)))
            for config in runs.configurations
        ]
        for name in settings(runs.study.trials)
    }
    for table in (table for part in parts for table in part.tables if table.key.endswith(_SHOWN)):
        for at, figure in enumerate(table.figures):
            if any(entries[at].n for _, entries in table.rows):  # else it is a setting
                row = rows.setdefault(figure.title, [Entry()] * len(runs.configurations))
                for config, (_, entries) in zip(table.places, table.rows):
                    row[config.number] = entries[at]
    return rows


def _columns(configurations: Sequence[Configuration]) -> list[str]:
    """Names of the first runs, with the id where several are alike."""
    trials = [config.trials for config in configurations]
    names = [first.name for first, *_ in trials]
    return [
        (first.name if names.count(first.name) == 1 else f"{first.name} {first.run_id[:_HASH]}")
        + (f" and {len(others)} more" if others else "")
        for first, *others in trials
    ]


def settings(trials: Sequence[Run]) -> list[str]:
    """The settings in which runs differ, whatever their models and data sets; of a single run, all that it has."""
    first = ("status", *frame.PLACED)
    names = {name for trial in trials for name in trial.params} - _IMPLIED - {*first, "seed"}
    every = (*first, *sorted(names), "seed", *_TAGS)
    known = {name: {value(trial, name) for trial in trials} for name in every}
    # A commit or a machine that was not recorded is unknown; a parameter that was not recorded is not set.
    return [name for name, of in known.items() if len(trials) == 1 or len(of - {""} if name in _TAGS else of) > 1]


def value(trial: Run, name: str) -> str:
    """One of :func:`settings` of a run, short enough for a table."""
    if name == "status":
        return trial.status
    text = trial.tags.get(frame.ORIGIN[name], "") if name in _TAGS else trial.params.get(name, "")
    if name == "commit":
        return frame.short_commit(text)
    return text[:_HASH] if re.fullmatch("[0-9a-f]{64}", text) else text
