"""A report's figures as data: tidy frames for a spreadsheet or pandas."""

from __future__ import annotations

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
_STATISTIC = ["figure", "mean", "std", "n", "run_ids"]


def runs(of: Runs, parts: Sequence[Part]) -> Any:
    """One row for every run: what it is, every parameter in which those differ that were not skipped, and every figure.

    Figures have the names of ``figures.csv``; those of a ratio are of its configuration, and so not here.
    """
    trials = of.study.trials
    params = pd.DataFrame([dict(trial.params) for trial in trials if trial.status != "SKIPPED"])
    varied = sorted(name for name in params if name not in _TOLD and params[name].nunique(dropna=False) > 1)
    rows = [
        {
            **{name: getattr(trial, name) for name in _RUN},
            **{name: trial.params.get(name, "") for name in (*_TOLD, *varied)},
            **{name: trial.tags.get(tag, "") for name, tag in frame.ORIGIN.items()},
        }
        for trial in trials
    ]
    shown = {figure.key: of.values(figure) for part in parts for table in part.tables for figure in table.figures}
    measured = pd.DataFrame(shown).dropna(axis="columns", how="all")
    told = _numeric(pd.DataFrame(rows, columns=[*_RUN, *_TOLD, *varied, *frame.ORIGIN]), (*_SIZES, "seed", *varied))
    return pd.concat([told, measured], axis="columns")


def figures(parts: Sequence[Part]) -> Any:
    """One row for every figure of a configuration, as the tables have it, with the runs that it comes from."""
    rows = [
        {
            **{name: getattr(config, name) for name in _PLACE},
            **{name: getattr(config, attribute) for name, attribute in _SIZES.items()},
            **dict(config.others),
            **dict(zip(_STATISTIC, (figure.key, entry.value, entry.std, entry.n, " ".join(entry.run_ids)))),
        }
        for table in (table for part in parts for table in part.tables)
        for config, (_, entries) in zip(table.places, table.rows)
        for figure, entry in zip(table.figures, entries)
        if entry.value is not None and entry.run_ids
    ]
    made = pd.DataFrame(rows, columns=None if rows else [*_PLACE, *_SIZES, *_STATISTIC])
    made = made.drop_duplicates(made.columns.difference(_STATISTIC[1:]), ignore_index=True)
    return _numeric(made, made.columns.difference([*_PLACE, *_STATISTIC])).astype({"mean": float, "std": float})


def _numeric(rows: Any, names: Iterable[str]) -> Any:
    """The frame with those of these columns as numbers that have nothing else but empty cells."""
    for name in rows.columns.intersection(list(names)):
        with suppress(ValueError):
            known = rows[name].where(rows[name] != "")
            rows[name] = pd.to_numeric(known, dtype_backend="numpy_nullable")
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
