"""A report as one HTML file that needs nothing else: styles, script and charts are in it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cifar_ray.reporting import pictures
from cifar_ray.reporting.contents import Chart, Entry, Report, Table

_TEMPLATES = Path(__file__).with_name("templates")
_SHORT_ID = 8


@dataclass(frozen=True)
class _Cell:
    """An entry as the page shows it: with the numbers of its footnotes, and whether it is code."""

    entry: Entry
    notes: tuple[int, ...]
    code: bool

    @property
    def link(self) -> str:
        """Where the text leads to. A store's answer may be anything; only web addresses become links."""
        return self.entry.link if re.match(r"https?://", self.entry.link) else ""

    @property
    def id(self) -> bool:
        """Whether it is the id of a run or a commit, of which the first characters are enough to see."""
        return re.fullmatch("[0-9a-f]{32,}", self.entry.text) is not None

    @property
    def origin(self) -> str:
        """The runs that a figure comes from, for those who point at it; the runs' table has them in full."""
        if self.entry.value is None or not self.entry.run_ids:
            return ""
        ids = ", ".join(run_id[:_SHORT_ID] for run_id in self.entry.run_ids)
        return f"run{'s' if len(self.entry.run_ids) > 1 else ''} {ids}"


@dataclass(frozen=True)
class _Sheet:
    """A table as the page shows it: its cells, and the entries' distinct notes in order."""

    table: Table
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, tuple[_Cell, ...]], ...]
    footnotes: tuple[str, ...]


@dataclass(frozen=True)
class _Picture:
    """A chart, drawn for both themes."""

    chart: Chart
    light: str
    dark: str


def page(report: Report) -> str:
    """The whole report as the text of an HTML file.

    Everything that comes from the store is text in it, whatever characters it has, and the page's own rules let
    no other script run and nothing be fetched.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(
        report=report,
        pictures=[_Picture(one, pictures.svg(one, "light"), pictures.svg(one, "dark")) for one in report.charts],
        sections=[
            (section, _sheets(section.tables), _sheets(section.folded))
            for section in (*report.sections, *([report.comparison] if report.comparison else []))
        ],
        runs=_sheet(report.runs),
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        script=script,
        fingerprint=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _sheets(tables: Sequence[Table]) -> list[_Sheet]:
    return [_sheet(table) for table in tables]


def _sheet(table: Table) -> _Sheet:
    notes = list(dict.fromkeys(entry.note for _, entries in table.rows for entry in entries if entry.note))
    commands = [re.search(r"\bcommand\b", heading, re.IGNORECASE) is not None for heading in table.columns[1:]]

    def cell(entry: Entry, code: bool) -> _Cell:
        return _Cell(entry, (notes.index(entry.note) + 1,) if entry.note else (), code)

    rows = [(label, tuple(map(cell, entries, commands))) for label, entries in table.rows]
    return _Sheet(table, _numeric(table.rows, len(commands)), tuple(rows), tuple(notes))


def _numeric(rows: Sequence[tuple[str, Sequence[Entry]]], columns: int) -> tuple[bool, ...]:
    """Which columns, after the first, hold numbers."""
    return tuple(any(entries[at].value is not None for _, entries in rows) for at in range(columns))
