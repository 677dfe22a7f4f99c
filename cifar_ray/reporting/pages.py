"""A report as a web page that needs nothing else, as Markdown, and its tables as lines for a terminal."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from cifar_ray.config.errors import printable
from cifar_ray.reporting import draw
from cifar_ray.reporting.contents import Finding, Report, Table, web_address

BEST = "*"
"""Marks the best of a column where there is no other way to show it."""

_TEMPLATES = Path(__file__).with_name("templates")
_pages = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _plain(words: str) -> str:
    """Words that Markdown takes as they are; a line break or a bar would end a table's cell."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(words.split()))


def _text(words: str) -> str:
    """Plain words outside a table: underscores stay, since they can neither make a link nor an element."""
    return _plain(words).replace(r"\_", "_")


def _code(command: str) -> str:
    """A block of code, fenced by more backquotes than stand together in it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", command))])
    return f"{fence}\n{command}\n{fence}"


_pages.filters |= {"plain": _plain, "text": _text, "code": _code, "web_address": web_address}


def html(report: Report) -> str:
    """The report as one HTML file: styles, script and charts are in it.

    What comes from the store is text in it, whatever characters it has; no other script may run, nothing is fetched.
    """
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    return _pages.get_template("report.html.j2").render(
        report=report,
        pictures=[(chart, draw.svg(chart, "light"), draw.svg(chart, "dark")) for chart in report.charts],
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        script=script,
        fingerprint=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def markdown(report: Report) -> str:
    """The report as a Markdown document; its pictures are the files beside it."""
    return "\n\n".join(_paragraphs("report.md.j2", report=report)) + "\n"


def summary(findings: Sequence[Finding], cautions: Sequence[str]) -> list[str]:
    """What a report says first, as paragraphs in Markdown."""
    return _paragraphs("summary.md.j2", findings=findings, cautions=cautions)


def _paragraphs(template: str, **values: object) -> list[str]:
    return re.split(r"\n{2,}", printable(_pages.get_template(template).render(values)).strip())


def lines(table: Table) -> list[str]:
    """A table as aligned lines for a terminal, its title first; the best of a column is marked ``*``."""
    rows = [[label, *(entry.text + BEST * entry.best for entry in entries)] for label, entries in table.rows]
    rows = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *rows)]
    aligned = []
    for label, *cells in (table.columns, ["-" * width for width in widths], *rows):
        padded = [label.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:]))]
        aligned.append("  ".join(padded).rstrip())
    return [table.title, *aligned]
