"""A report for a LaTeX document: the width of its charts, and its tables."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, groupby
from typing import Literal, get_args

from cifar_ray.config import errors
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting.contents import Entry, Report, Table

Style = Literal["screen", "paper"]
_COLUMN = "84mm"
_PER_INCH = {"mm": 25.4, "cm": 2.54, "in": 1.0, "pt": 72.27}  # TeX's point
_NARROWEST, _WIDEST = 60, 400  # mm
_ROOM = 125  # characters of 6.4 points in the text width of article
_GAP = 2  # between columns, in characters
_LABEL, _HEADING, _TEXT = 34, 12, 60  # characters in a line of a label, of a column's heading, of another text
_MOST_LINES = 36  # of the rows on a page, which has room for the notes, too
_APART = 0.5  # lines between rows where some have several
_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"`": r"\textasciigrave{}", '"': r"\texttt{\symbol{34}}"},  # OT1, the default encoding, has no \textquotedbl
    **{character: f"{{{character}}}" for character in "[*"},  # at the start of a row, they would be options of \\
}


def chart_width(style: Style, width: str | None) -> float | None:
    """Width in inches of charts for a paper, a column of 84 mm by default; None when none are wanted.

    Raises:
        ConfigError: when the style or the width is none.
    """
    if style not in get_args(Style):
        raise ConfigError("style", f"must be {errors.one_of(get_args(Style))}, got {errors.brief(style)}")
    if style == "screen":
        if width is not None:
            raise ConfigError("width", "is the width of charts for a paper, and needs --style paper")
        return None
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?(mm|cm|in|pt)", _COLUMN if width is None else width, re.ASCII)
    inches = float(match[1]) / _PER_INCH[match[2]] if match else 0.0
    if not _NARROWEST <= round(inches * 25.4, 6) <= _WIDEST:  # 6 cm in inches are 59.99999 mm
        problem = f"must be a length from 60mm to 400mm, such as 84mm, 8.4cm, 3.3in or 239pt, got {errors.brief(width)}"
        raise ConfigError("width", problem)
    return inches


def tables(report: Report) -> dict[str, str]:
    """Key -> LaTeX of every table but that of the runs, whose ids and commands are too wide for a page."""
    origin = f"% {_line(f'cifar-ray {report.version}, {report.written}, from {report.study.store}')}"
    head = f"{origin}\n% The runs are in runs.csv. Needs \\usepackage{{booktabs,graphicx}}.\n"
    texts = {}
    for section in report.all_sections:
        for table in section.all_tables:
            # Notes on a whole section stand below its main tables, or below the first where none is a main one.
            of_section = section.notes if table in (section.tables or section.all_tables[:1]) else ()
            parts = list(_parts(table))
            floats = []
            for number, part in enumerate(parts, 1):
                which = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
                key = table.key if number == 1 else f"{table.key}_{number}"
                notes = (*table.notes, *(of_section if number == 1 else ()))
                title = f"{section.title}: {table.title}{which}."
                floats.append(_table(replace(part, key=key, title=title, notes=notes)))
            texts[table.key] = head + "\n".join(floats)
    return texts


def _parts(table: Table) -> Iterator[Table]:
    """The table in parts, each with the labels, that are as wide as a page at most, and as high."""
    cells = [_heading(table), *_rows(table)]
    widths = [_GAP + max(len(line) for cell in column for line in cell) for column in zip(*cells)]
    # Theirs and ours of one figure stand side by side.
    alike = groupby(range(1, len(widths)), lambda at: re.sub(", (theirs|ours)$", "", table.columns[at]))
    blocks = [list(block) for _, block in alike]
    for number in count(1):
        most = math.ceil(len(blocks) / number)
        groups = [list(chain(*blocks[at : at + most])) for at in range(0, len(blocks), most)]
        if most <= 1 or all(widths[0] + sum(widths[at] for at in group) <= _ROOM for group in groups):
            break
    heights = [max(map(len, row)) for row in cells[1:]]
    lines, pages = 0.0, list[list[int]]()
    for at, height in enumerate(heights):
        more = height + (_APART if max(heights) > 1 else 0)
        if not pages or lines + more > _MOST_LINES:
            lines = 0.0
            pages.append([])
        lines += more
        pages[-1].append(at)
    for page in pages:
        for group in groups:
            rows = [(table.rows[at][0], [table.rows[at][1][column - 1] for column in group]) for at in page]
            yield replace(table, columns=[table.columns[at] for at in (0, *group)], rows=rows)


def _heading(table: Table) -> list[list[str]]:
    """The lines of every column's heading."""
    return [textwrap.wrap(_line(name), _HEADING, break_long_words=False) for name in table.columns]


def _rows(table: Table) -> Iterator[list[list[str]]]:
    """The lines of every cell, row by row; a number has one."""
    for label, entries in table.rows:
        cells = [
            [_line(entry.text)] if number else textwrap.wrap(_line(entry.text), _TEXT) or [""]
            for entry, number in zip(entries, table.numeric)
        ]
        yield [textwrap.wrap(_line(label), _LABEL) or [""], *cells]


def _table(table: Table) -> str:
    """A table as a float, with its notes below it: in letters of 8 points, smaller where it would be too wide."""
    aligned = "l" + "".join("r" if number else "l" for number in table.numeric)
    head = " & ".join(_cell(lines, "b", align) for lines, align in zip(_heading(table), aligned))
    several = any(len(lines) > 1 for row in _rows(table) for lines in row)
    rows = []
    for (_, entries), (label, *cells) in zip(table.rows, _rows(table)):
        shown = [
            (rf"\textbf{{{_cell(lines, 't', align)}}}" if entry.best else _cell(lines, "t", align))
            + _mark(entry, table)
            for entry, lines, align in zip(entries, cells, aligned[1:])
        ]
        rows.append(" & ".join([_cell(label, "t", "l"), *shown]) + r" \\")
    marked = [rf"\textsuperscript{{{_letter(at)}}}~{_escaped(note)}." for at, note in enumerate(table.footnotes)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(table.title)}}}",
            rf"\label{{tab:{table.key}}}",
            r"\par\smallskip\footnotesize",
            r"\setlength{\tabcolsep}{4pt}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{aligned}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            ("\n\\addlinespace\n" if several else "\n").join(rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\par\medskip\raggedright",
            *marked,
            *map(_escaped, table.notes),
            r"\end{table}",
            "",
        ]
    )


def _cell(lines: Sequence[str], position: str, align: str) -> str:
    """Lines in one cell, of which the top or the bottom one is level with the row."""
    if len(lines) == 1:
        return _escaped(lines[0])
    stacked = r"\\".join(map(_escaped, lines))
    return rf"\begin{{tabular}}[{position}]{{@{{}}{align}@{{}}}}{stacked}\end{{tabular}}"


def _mark(entry: Entry, table: Table) -> str:
    """The letter of an entry's note; a raised digit would look like a power."""
    return rf"\textsuperscript{{{_letter(table.footnotes.index(entry.note))}}}" if entry.note else ""


def _letter(number: int) -> str:
    """``a`` to ``z``, then ``aa``, ``bb`` and so on."""
    more, at = divmod(number, 26)
    return chr(ord("a") + at) * (more + 1)


def _line(text: str) -> str:
    """Text on one line, without characters that cannot be set."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def _escaped(text: str) -> str:
    """Text that LaTeX sets as it is."""
    escaped = "".join(_SPECIAL.get(character, character) for character in _line(text))
    escaped = re.sub(r"(?<!\w)'|'(?!\w)", r"\\textquotesingle{}", escaped)  # one within a word is an apostrophe
    return re.sub(r"([-,])(?=\1)", r"\1\\/", escaped)  # two would become a dash or a low quote
