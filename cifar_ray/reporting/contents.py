"""What a report consists of, as plain values; what it looks like is decided where it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cifar_ray.config.errors import counted
from cifar_ray.tracking.study import Study

Theme = Literal["light", "dark"]


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        text: as a person reads it, without the unit that the column's heading has; empty when not measured.
        value: the number to sort by; None when not measured.
        std: sample standard deviation over the seeds; None with fewer than two.
        n: how many runs it is the mean of.
        best: whether it is the best of its column.
        run_ids: the runs it comes from.
        note: why it is empty or not what it seems, in words; a footnote.
        link: an address that ``text`` leads to.
        partial: whether only some of the finished runs have it; such an entry is never the best.
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
    """A heading, named columns, and rows.

    Attributes:
        key: short name, made of letters, digits and ``_``.
        title: what it shows.
        columns: headings with units; the first is that of the row labels.
        rows: label of the row, and one entry for every other column.
        notes: sentences below it.
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        key: short name, made of letters, digits and ``_``: the file's name.
        title: heading.
        caption: what it shows and how to read it, one or two sentences; also its text for those who cannot see it.
        draw: makes a matplotlib figure for a light or a dark page.
    """

    key: str
    title: str
    caption: str
    draw: Callable[[Theme], Any]


@dataclass(frozen=True)
class Highlight:
    """A figure that answers a question at a glance.

    Attributes:
        title: the question, such as ``Fastest``.
        figure: the answer with its unit.
        configuration: which configuration it is, in a few words.
    """

    title: str
    figure: str
    configuration: str


@dataclass(frozen=True)
class Section:
    """Tables that belong together, such as those of one model on one data set.

    Attributes:
        title: heading.
        tables: those that are open on the page.
        folded: those that open when they are asked for.
        notes: sentences above them.
    """

    title: str
    tables: Sequence[Table]
    folded: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Finding:
    """What the runs of one model on one data set and device came to.

    Attributes:
        title: the model, with the data set and the device where the study has several.
        highlights: three or four figures.
        sentences: the most important first.
    """

    title: str
    highlights: Sequence[Highlight]
    sentences: Sequence[str]


@dataclass(frozen=True)
class Report:
    """Everything that a report says.

    Attributes:
        study: the runs.
        findings: by model, data set and device.
        cautions: what a reader must know before believing a figure: cells that failed, a sweep that still runs,
            times that are not a cluster's.
        sections: tables by model and data set.
        runs: one row for every run: its link, commit, machine, and the command to run it again.
        comparison: a published study's figures beside these; None when none was asked for.
        charts: pictures, the two that matter most first.
        data: tidy rows: ``runs``, one for every run, and ``figures``, one for every figure of a configuration.
        version: of the program that wrote it.
        written: when, in UTC, as ``2026-01-31 12:00 UTC``.
        files: what it was written to, the page for a browser first.
    """

    study: Study
    findings: Sequence[Finding]
    cautions: Sequence[str]
    sections: Sequence[Section]
    runs: Table
    comparison: Section | None
    charts: Sequence[Chart]
    data: Mapping[str, Sequence[Mapping[str, Any]]]
    version: str
    written: str
    files: Sequence[Path] = ()

    def __repr__(self) -> str:
        return f"<report {self.study.name}: {counted(len(self.study.trials), 'run')}>"
