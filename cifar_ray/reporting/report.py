"""A study's report: put together, and written as files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from cifar_ray import __version__
from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import aggregate, markdown, papers, tables, words
from cifar_ray.reporting.contents import Report
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.table import Table
from cifar_ray.tracking.study import Study

_MANIFEST = ".report.json"
"""Lists the tables and charts of the report in a folder, for the next one to remove."""

Note = Callable[[str], None]
"""Is told how far a report is."""


def build(study: Study, baseline: str | None = None, price: Price | None = None, target: float | None = None) -> Report:
    """Everything that the report of a study says.

    Args:
        study: the runs.
        baseline: a published study to lay beside it, by its key in ``papers.yaml``.
        price: of one node, for what the runs would cost.
        target: test accuracy, 0 to 1, for the time to a target; by default one that all runs of a model reach.

    Raises:
        ConfigError: when the baseline is not known.
    """
    from cifar_ray.reporting import charts  # matplotlib takes seconds to import

    return Report(
        study=study,
        summary=summary(study, price),
        warnings=words.warnings(study),
        sections=tables.sections(study, target, price),
        runs=tables.runs_table(study),
        comparison=papers.comparison(study, baseline) if baseline is not None else None,
        charts=charts.charts(study, baseline) if any(trial.finished for trial in study.trials) else (),
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def summary(study: Study, price: Price | None) -> list[str]:
    """The sentences that a report begins with."""
    return words.summary(study, aggregate.configurations(study), price)


def folder(given: str) -> Path:
    """The folder that receives a report, made if it is not there, so that nothing is computed in vain.

    Raises:
        ConfigError: when it cannot be written to.
    """
    out = files.absolute("out", given)
    try:
        for name in ("tables", "charts"):
            (out / name).mkdir(parents=True, exist_ok=True)
            files.write_whole(out / name / ".probe", "")
            (out / name / ".probe").unlink()
    except OSError as error:
        raise _unwritable(out, error) from None
    return out


def write(report: Report, out: Path, note: Note = lambda _: None) -> list[Path]:
    """Write ``report.html``, ``report.md``, ``tables/*.csv`` and ``charts/*``.

    The tables and charts of an earlier report in the same folder are removed first, and nothing else is.

    Args:
        report: what they say.
        out: a folder as :func:`folder` makes it.
        note: is told how far it is.

    Returns:
        The files, the page for a browser first.

    Raises:
        ConfigError: when the folder cannot be written to.
    """
    from cifar_ray.reporting import charts, html

    try:
        _remove_earlier(out)
        listed = [f"tables/{table.key}.csv" for table in every_table(report)]
        listed += [f"charts/{chart.key}.{kind}" for chart in report.charts for kind in ("png", "svg")]
        files.write_whole(out / _MANIFEST, json.dumps({"files": listed}, indent=1) + "\n")
        drawn: list[Path] = []
        for number, chart in enumerate(report.charts, 1):
            note(f"chart {number} of {len(report.charts)}: {chart.title}")
            drawn += charts.save(chart, out / "charts")
        note("tables and pages")
        texts = {out / "report.html": html.page(report), out / "report.md": markdown.text(report)}
        texts |= {out / "tables" / f"{table.key}.csv": markdown.csv_text(table) for table in every_table(report)}
        for path, content in texts.items():
            files.write_whole(path, content)
    except OSError as error:
        raise _unwritable(out, error) from None
    return [*texts, *drawn]


def _remove_earlier(out: Path) -> None:
    """Remove what an earlier report says that it wrote here, as far as a report writes such files at all."""
    try:
        listed = json.loads((out / _MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in listed if isinstance(listed, list) else ():
        if isinstance(name, str) and re.fullmatch(r"tables/\w+\.csv|charts/\w+\.(png|svg)", name):
            (out / name).unlink(missing_ok=True)


def terminal(study: Study, price: Price | None, target: float | None) -> Iterator[str]:
    """The summary, the cautions and all tables that have a figure, as lines for a terminal."""
    yield from summary(study, price)
    yield from (f"caution: {warning}" for warning in words.warnings(study))
    for section in tables.sections(study, target, price):
        yield from ("", section.title, *section.notes)
        told: set[str] = set()
        for table in section.tables:
            if any(entry.text for _, entries in table.rows for entry in entries):
                yield from ("", *markdown.lines(table))
                yield from (note for note in table.notes if note not in told)
                told |= set(table.notes)
    yield from ("", *markdown.lines(_short(tables.runs_table(study))))
    yield f"{markdown.BEST} marks the best of a column."


def _short(runs: Table) -> Table:
    """The table of runs without the commands, which are longer than a terminal is wide."""
    return replace(runs, columns=runs.columns[:-1], rows=[(name, entries[:-1]) for name, entries in runs.rows])


def every_table(report: Report) -> Iterator[Table]:
    """All tables of a report, in its order."""
    for section in report.sections:
        yield from section.tables
    if report.comparison is not None:
        yield from report.comparison.tables
    yield report.runs


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError("out", f"must be a folder that can be written to, and {out} is not ({error.strerror or error})")
