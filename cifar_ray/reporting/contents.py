"""What a report consists of, before it is written as HTML, Markdown, CSV and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cifar_ray.reporting.table import Table
from cifar_ray.tracking.study import Study

Theme = Literal["light", "dark"]


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
class Section:
    """Tables that belong together, such as those of one model on one data set."""

    title: str
    tables: Sequence[Table]
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Report:
    """Everything that a report says.

    Attributes:
        study: the runs.
        summary: sentences, the most important first.
        warnings: what a reader must know before believing a figure: cells that failed, a sweep that still
            runs, times that are not a cluster's.
        sections: tables by model and data set.
        runs: one row for every run: its link, commit, machine, and the command to run it again.
        comparison: a published study's figures beside these; None when none was asked for.
        charts: pictures.
        version: of the program that wrote it.
        written: when, in UTC, as ``2026-01-31 12:00 UTC``.
    """

    study: Study
    summary: Sequence[str]
    warnings: Sequence[str]
    sections: Sequence[Section]
    runs: Table
    comparison: Section | None
    charts: Sequence[Chart]
    version: str
    written: str
