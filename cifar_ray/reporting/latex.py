"""A report for a LaTeX document: the width of its charts, and its tables."""

from __future__ import annotations

import re
from typing import Literal, get_args

from cifar_ray.config import errors
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting.contents import Report, Table

Style = Literal["screen", "paper"]
_COLUMN = "84mm"
_PER_INCH = {"mm": 25.4, "cm": 2.54, "in": 1.0, "pt": 72.27}  # TeX's point
_NARROWEST, _WIDEST = 60, 400  # mm
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
            raise ConfigError("width", "is the width of charts for a paper, and needs style paper")
        return None
    given = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?(mm|cm|in|pt)", _COLUMN if width is None else width, re.ASCII)
    inches = float(given[1]) / _PER_INCH[given[2]] if given else 0.0
    if not _NARROWEST <= round(inches * 25.4, 6) <= _WIDEST:  # 6 cm in inches are 59.99999 mm
        problem = f"must be a length from 60mm to 400mm, such as 84mm, 8.4cm, 3.3in or 239pt, got {errors.brief(width)}"
        raise ConfigError("width", problem)
    return inches


def tables(report: Report) -> dict[str, str]:
    """Key -> LaTeX of every table but that of the runs, whose ids and commands are too wide for a page."""
    origin = f"% {_line(f'cifar-ray {report.version}, {report.written}, from {report.study.store}')}"
    head = f"{origin}\n% The runs are in runs.csv. Needs \\usepackage{{booktabs}}.\n"
    return {
        table.key: head + _table(section.title, table)
        for section in report.all_sections
        for table in section.all_tables
    }


def _table(section: str, table: Table) -> str:
    import pandas as pd

    rows = [
        [_escaped(label)]
        + [rf"\textbf{{{_escaped(entry.text)}}}" if entry.best else _escaped(entry.text) for entry in entries]
        for label, entries in table.rows
    ]
    return str(
        pd.DataFrame(rows, columns=[_escaped(name) for name in table.columns])
        .style.hide(axis="index")
        .to_latex(
            column_format="l" + "".join("r" if number else "l" for number in table.numeric),
            hrules=True,
            position_float="centering",
            caption=_escaped(" ".join((f"{section}: {table.title}.", *table.notes))),
            label=f"tab:{table.key}",
        )
    )


def _line(text: str) -> str:
    """Text on one line, without characters that cannot be set."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def _escaped(text: str) -> str:
    """Text that LaTeX sets as it is."""
    escaped = "".join(_SPECIAL.get(character, character) for character in _line(text))
    escaped = re.sub(r"(?<!\w)'|'(?!\w)", r"\\textquotesingle{}", escaped)  # one within a word is an apostrophe
    return re.sub(r"([-,])(?=\1)", r"\1\\/", escaped)  # two would become a dash or a low quote
