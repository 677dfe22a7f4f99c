"""A report's figures as data: tidy frames for a spreadsheet or pandas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pandas as pd

from cifar_ray.config.errors import printable
from cifar_ray.reporting import frame
from cifar_ray.reporting.contents import Report
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.tables import Part

Row = dict[str, Any]
_TOLD = ("model", "dataset", "strategy", "topology", "batch_size", "global_batch_size", "seed")
_RUN = ("run_id", "name", "status", "reason")
_PLACE = ("model", "dataset", "device", "strategy", "topology")
_SIZES = {"workers": "world_size", "batch_size": "batch_size", "global_batch_size": "global_batch_size"}
_STATISTIC = ("figure", "mean", "std", "n", "run_ids")


def runs(of: Runs, parts: Sequence[Part]) -> Any:
    """One row for every run: what it is, every parameter in which runs differ, and every figure.

    A parameter that only skipped runs lack does not differ. Figures have the names of ``figures.csv``; those of a
    ratio are of its configuration, and so not here.
    """
    trials = of.study.trials
    names = {name for trial in trials for name in trial.params}
    recorded = {name: [t for t in trials if name in t.params or t.status != "SKIPPED"] for name in names - {*_TOLD}}
    varied = sorted(name for name, by in recorded.items() if len({trial.params.get(name) for trial in by}) > 1)
    shown = {figure.key: figure for part in parts for table in part.tables for figure in table.figures}
    rows = []
    for at, trial in enumerate(trials):
        row: Row = {name: getattr(trial, name) for name in _RUN}
        row |= {name: trial.params.get(name, "") for name in (*_TOLD, *varied)}
        row |= {name: trial.tags.get(tag, "") for name, tag in frame.ORIGIN.items()}
        measured = {key: of.values(figure)[at] for key, figure in shown.items()}
        rows.append(row | {key: value for key, value in measured.items() if not math.isnan(value)})
    return _numeric(_frame(rows, (*_RUN, *_TOLD, *frame.ORIGIN)), (*_SIZES, "seed", *varied))


def figures(parts: Sequence[Part]) -> Any:
    """One row for every figure of a configuration, as the tables have it, with the runs that it comes from."""
    rows = _frame(
        [
            {
                **{name: getattr(config, name) for name in _PLACE},
                **{name: str(getattr(config, attribute)) for name, attribute in _SIZES.items()},
                **dict(config.others),
                **{"figure": figure.key, "mean": entry.value, "std": entry.std, "n": entry.n},
                "run_ids": " ".join(entry.run_ids),
            }
            for table in (table for part in parts for table in part.tables)
            for config, (_, entries) in zip(table.places, table.rows)
            for figure, entry in zip(table.figures, entries)
            if entry.value is not None and entry.run_ids
        ],
        (*_PLACE, *_SIZES, *_STATISTIC),
    )
    rows = rows.drop_duplicates(rows.columns.difference(_STATISTIC[1:]), ignore_index=True)
    return _numeric(rows, rows.columns.difference([*_PLACE, *_STATISTIC])).astype({"mean": float, "std": float})


def _frame(rows: Sequence[Row], columns: Sequence[str]) -> Any:
    """A frame of rows; without any, an empty one with these columns."""
    return pd.DataFrame(rows, columns=None if rows else list(columns))


def _numeric(rows: Any, names: Iterable[str]) -> Any:
    """The frame with those of these columns as numbers that have nothing else, whole ones also beside empty cells."""
    rows = rows.copy()
    for name in rows.columns.intersection(list(names)):
        texts = rows[name].dropna()
        texts = texts[texts != ""]
        with suppress(ValueError):
            numbers = pd.to_numeric(texts)
            is_nullable = len(texts) < len(rows) and pd.api.types.is_integer_dtype(numbers)
            rows[name] = (numbers.astype("Int64") if is_nullable else numbers).reindex(rows.index)
    return rows


def csv_text(rows: Any) -> str:
    """A frame as CSV (RFC 4180); what a row lacks is empty. A lone CR or a NUL would end a row, or reading it."""
    return printable(rows.to_csv(index=False, lineterminator="\n"))


def records(rows: Any) -> list[Row]:
    """A frame's rows as plain values, without what they lack."""
    return [{name: value for name, value in row.items() if pd.notna(value)} for row in rows.to_dict("records")]


def whole(report: Report) -> Row:
    """Everything of a report but its pictures, or of a comparison, as plain values."""
    return {
        "study": report.study.name,
        **{name: getattr(report.study, name) for name in ("store", "status", "command")},
        **({"best": report.lead} if report.lead else {}),
        "findings": list(map(asdict, report.findings)),
        "cautions": list(report.cautions),
        **{name: records(report.data[name]) for name in ("runs", "figures")},
    }
