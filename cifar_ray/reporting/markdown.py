"""A report as Markdown, and single tables as lines for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cifar_ray.reporting.contents import Entry, Finding, Report, Section, Table

BEST = "*"
"""Marks the best of a column where there is no other way to show it."""


def text(report: Report) -> str:
    """The whole report as a Markdown document; its pictures are the files beside it."""
    study = report.study
    parts = [f"# {_plain(study.name)}", f"Written {report.written} by cifar-ray {report.version} from {study.store}."]
    if study.page:
        parts.append(f"The sweep in MLflow: <{study.page}>")
    if study.command:
        parts += ["To run it again:", f"```\n{study.command}\n```"]
    parts += first_screen(report.findings, report.cautions)
    for chart in report.charts:
        parts += [f"## {_plain(chart.title)}", f"![{_plain(chart.title)}](charts/{chart.key}.png)", chart.caption]
    for section in [*report.sections, *([report.comparison] if report.comparison else [])]:
        parts += _section(section)
    parts += ["## Runs", *_table(report.runs)]
    return "\n\n".join(parts) + "\n"


def first_screen(findings: Sequence[Finding], cautions: Sequence[str]) -> list[str]:
    """What a report says first, as paragraphs."""
    parts = []
    for finding in findings:
        parts.append(f"## {_plain(finding.title)}")
        if finding.highlights:
            shown = (
                f"{_plain(one.title)}: **{_plain(one.figure)}** ({_plain(one.configuration)})"
                for one in finding.highlights
            )
            parts.append("\n".join(f"- {line}" for line in shown))
        parts += [_bullets(finding.sentences)] if finding.sentences else []
    return parts + (["## Before you rely on it", _bullets(cautions)] if cautions else [])


def _section(section: Section) -> list[str]:
    parts = [f"## {_plain(section.title)}"]
    parts += [_bullets(section.notes)] if section.notes else []
    for table in (*section.tables, *section.folded):
        parts += [f"### {_plain(table.title)}", *_table(table)]
    return parts


def _table(table: Table) -> list[str]:
    head = [" | ".join(map(_plain, table.columns)), " | ".join(["---"] * len(table.columns))]
    rows = [" | ".join([_plain(label), *map(_cell, entries)]) for label, entries in table.rows]
    lines = "\n".join(f"| {line} |" for line in [*head, *rows])
    return [lines, _bullets(table.notes)] if table.notes else [lines]


def _cell(entry: Entry) -> str:
    shown = _plain(entry.text)
    if entry.link:
        shown = f"[{shown}]({entry.link})"
    return f"**{shown}**" if entry.best else shown


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {_plain(sentence)}" for sentence in sentences)


def _plain(words: str) -> str:
    """Words that Markdown takes as they are; a line break or a bar would end a table's cell."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(words.split()))


def lines(table: Table) -> list[str]:
    """A table as aligned lines for a terminal, its heading first; the best of a column is marked ``*``."""
    shown = [list(table.columns)]
    shown += [[label, *(entry.text + BEST * entry.best for entry in entries)] for label, entries in table.rows]
    widths = [max(len(row[position]) for row in shown) for position in range(len(table.columns))]
    aligned = []
    for row in shown:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        aligned.append("  ".join(cells).rstrip())
    rule = "  ".join("-" * width for width in widths)
    return [table.title, aligned[0], rule, *aligned[1:]]
