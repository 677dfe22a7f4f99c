"""What a report consists of, as plain values; what it looks like is decided where it is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cifar_ray._version import __version__
from cifar_ray.config.errors import counted
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import Configuration
from cifar_ray.tracking.study import Sweep

Theme = Literal["light", "dark"]
Draw = Callable[[Theme], Any]


def web_address(address: str) -> str:
    """The address if it is a web address that Markdown takes as one link, else empty; a store may return anything."""
    return address if re.fullmatch(r"https?://[^\s<>()|]+", address) else ""


@dataclass(frozen=True)
class Entry:
    """One cell of a table: a mean over ``n`` runs, with its sample standard deviation over the seeds.

    Attributes:
        text: as a person reads it, without its unit; empty when not measured.
        value: the number to sort by; None when not measured.
        note: a footnote: why it is empty or not what it seems.
        link: an address that ``text`` leads to.
        partial: whether only some of the finished runs have it; such an entry is never the best of its column.
    """

    text: str = ""
    value: float | None = None
    std: float | None = None
    n: int = 0
    best: bool = False
    run_ids: tuple[str, ...] = ()
    note: str = ""
    link: str = ""
    partial: bool = False


@dataclass(frozen=True)
class Table:
    """Named columns, of which the first has the rows' labels, and rows; ``notes`` stand below.

    Of figures by configuration, ``figures`` are those of the columns after the first, ``places`` those of the rows.
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]
    notes: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    places: Sequence[Configuration] = ()

    @cached_property
    def footnotes(self) -> list[str]:
        """The distinct notes of its entries, in order."""
        return list(dict.fromkeys(entry.note for _, entries in self.rows for entry in entries if entry.note))

    @cached_property
    def numeric(self) -> list[bool]:
        """Which columns, after the first, hold numbers."""
        return [any(row[at].value is not None for _, row in self.rows) for at in range(len(self.columns) - 1)]


@dataclass(frozen=True)
class Chart:
    """One picture; ``key`` names its file, and ``draw`` makes a matplotlib figure for a light or a dark page."""

    key: str
    title: str
    caption: str
    draw: Draw


@dataclass(frozen=True)
class Highlight:
    """A figure that answers a question at a glance: ``Best accuracy``, the figure with its unit, and of which run."""

    title: str
    figure: str
    configuration: str


@dataclass(frozen=True)
class Section:
    """Tables that belong together; the ``folded`` ones open when they are asked for, ``notes`` stand above them."""

    title: str
    tables: Sequence[Table]
    folded: Sequence[Table] = ()
    notes: Sequence[str] = ()

    @property
    def all_tables(self) -> list[Table]:
        """The open ones, then the folded ones."""
        return [*self.tables, *self.folded]


@dataclass(frozen=True)
class Finding:
    """What the runs of one model, data set and device came to, the most important sentence first."""

    title: str
    highlights: Sequence[Highlight]
    sentences: Sequence[str]


@dataclass(frozen=True)
class Report:
    """Everything that a report says.

    Attributes:
        sections: the tables of each model on each data set.
        data: pandas frames: ``runs``, a row for every run, and ``figures``, a row for every figure of a configuration.
        comparison: a published study's figures beside these; None when none was asked for.
        charts: the two that matter most first.
        lead: the best run of a search, in a sentence; empty of other studies.
        written: when, in UTC.
        files: what it was written to, the page for a browser first.
    """

    study: Sweep
    findings: Sequence[Finding]
    cautions: Sequence[str]
    sections: Sequence[Section]
    runs: Table
    data: Mapping[str, Any]
    comparison: Section | None = None
    charts: Sequence[Chart] = ()
    lead: str = ""
    version: str = __version__
    written: str = field(default_factory=lambda: datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    files: Sequence[Path] = ()

    @property
    def all_sections(self) -> list[Section]:
        """The sections, with the comparison as the last."""
        return [*self.sections, *([self.comparison] if self.comparison else [])]

    def __repr__(self) -> str:
        return f"<report {self.study.name}: {counted(len(self.study.trials), 'run')}>"
