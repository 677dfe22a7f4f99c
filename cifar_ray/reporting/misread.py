"""The test texts that the best run got wrong most surely, as a table."""

from __future__ import annotations

from typing import Any

from cifar_ray.reporting import charts
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.frame import Runs


def sections(runs: Runs) -> list[Section]:
    """The section with the table; none where the runs' samples are no texts."""
    if (shown := charts.best(runs)) is None or not (texts := [one for one in shown[0].mistakes if "text" in one]):
        return []
    best, named = shown
    rows = [(str(number), _row(record)) for number, record in enumerate(texts, 1)]
    note = f"Test texts of {best.dataset} as the model sees them, shortened: {named}."
    titles = ("#", "text", "class", "taken for", "probability (%)")
    return [Section("Texts most surely wrong", [Table("misread", "Misread texts", titles, rows, (note,))])]


def _row(record: Any) -> list[Entry]:
    share = record["probability"]
    return [*(Entry(str(record[name])) for name in ("text", "true", "predicted")), Entry(f"{100 * share:.2f}", share)]
