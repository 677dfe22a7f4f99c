"""A report's figures as data: tidy rows for pandas or a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cifar_ray.reporting import aggregate, tables
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.cells import Group
from cifar_ray.reporting.contents import Report
from cifar_ray.reporting.cost import Price
from cifar_ray.tracking.study import Study

Row = dict[str, Any]


def runs(study: Study, targets: Sequence[float], price: Price | None) -> list[Row]:
    """One row for every run: what it is, every parameter in which runs differ, and every figure.

    Figures have the names of ``figures.csv``; those of a ratio are of its configuration, and so not here.
    """
    every = {name for trial in study.trials for name in trial.params}
    varied = {name for name in every if len({trial.params.get(name) for trial in study.trials}) > 1}
    told = ("model", "dataset", "strategy", "topology", "batch_size", "global_batch_size", "seed")
    columns = dict.fromkeys(
        column.figure
        for group in tables.groups(study)
        for one in tables.filled(group, targets, price)
        for column in one.columns
    )
    rows = []
    for trial in study.trials:
        row: Row = {"run_id": trial.run_id, "name": trial.name, "status": trial.status, "reason": trial.reason}
        row |= {name: trial.params.get(name, "") for name in (*told, *sorted(varied - {*told}))}
        row |= {name: trial.tags.get(tag, "") for name, tag in aggregate.ORIGIN.items()}
        row |= {figure.key: value for figure in columns if (value := figure.measure(trial)) is not None}
        rows.append(row)
    return rows


def figures(study: Study, targets: Sequence[float], price: Price | None) -> list[Row]:
    """One row for every figure of a configuration, as the tables have it, with the runs that it comes from."""
    return [row for group in tables.groups(study) for row in _of_group(group, targets, price)]


def _of_group(group: Group, targets: Sequence[float], price: Price | None) -> Iterator[Row]:
    found = set()
    for filled in tables.filled(group, targets, price):
        for one, entries in filled.rows:
            for column, entry in zip(filled.columns, entries):
                key = (group.names.row(one), column.figure.key)
                if entry.value is not None and entry.run_ids and key not in found:
                    found.add(key)
                    figure = {"figure": column.figure.key, "mean": entry.value, "std": entry.std, "n": entry.n}
                    yield {**_place(one), **figure, "run_ids": " ".join(entry.run_ids)}


def _place(one: Configuration) -> Row:
    place = {"model": one.model, "dataset": one.dataset, "device": one.device, "strategy": one.strategy}
    place |= {"topology": one.topology, "workers": str(one.world_size), "batch_size": str(one.batch_size)}
    return {**place, "global_batch_size": str(one.global_batch_size), **dict(one.others)}


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV (RFC 4180); what a row lacks is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def whole(report: Report) -> Row:
    """Everything of a report but its pictures, as plain values."""
    study = report.study
    return {
        "study": study.name,
        "store": study.store,
        "status": study.status,
        "command": study.command,
        "findings": [
            {
                "title": one.title,
                "highlights": [vars(highlight) for highlight in one.highlights],
                "sentences": list(one.sentences),
            }
            for one in report.findings
        ],
        "cautions": list(report.cautions),
        **report.data,
    }
