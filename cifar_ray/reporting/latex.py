"""A report's tables for a LaTeX document, with booktabs."""

from __future__ import annotations

import re

from cifar_ray.reporting.contents import Entry, Report, Table

_HEAD = "% The runs are in runs.csv. Needs \\usepackage{booktabs,adjustbox}."
_SPECIAL = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
        **{'"': r"\texttt{\symbol{34}}"},  # OT1, the default encoding, has no \textquotedbl
        **{character: f"{{{character}}}" for character in "[*"},  # at the start of a row, they would be options of \\
    }
)


def tables(report: Report) -> dict[str, str]:
    """Key -> LaTeX of every table but that of the runs, whose ids and commands are too wide for a page."""
    origin = f"% {_line(f'cifar-ray {report.version}, {report.written}, from {report.study.store}')}"
    texts = {}
    for section in report.all_sections:
        for at, table in enumerate(section.all_tables):
            notes = [*table.notes, *(section.notes if at == 0 else ())]
            texts[table.key] = "\n".join([origin, _HEAD, *_float(section.title, table, notes)])
    return texts


def _float(title: str, table: Table, notes: list[str]) -> list[str]:
    """The lines of a table with its notes below it, shrunk where it is larger than a page."""
    import pandas as pd  # takes long to import

    rows = [[_escaped(label), *(_cell(entry, table) for entry in entries)] for label, entries in table.rows]
    frame = pd.DataFrame(rows, columns=list(map(_escaped, table.columns)))
    aligned = "l" + "".join("r" if number else "l" for number in table.numeric)
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(f'{title}: {table.title}.')}}}",
        rf"\label{{tab:{table.key}}}",
        r"\footnotesize",
        r"\adjustbox{max size={\linewidth}{0.8\textheight}}{%",
        frame.to_latex(index=False, escape=False, column_format=aligned).rstrip() + "}",
        r"\par\medskip\raggedright",
        *(f"{_mark(note, table)}~{_escaped(note)}." for note in table.footnotes),
        *map(_escaped, notes),
        r"\end{table}",
        "",
    ]


def _cell(entry: Entry, table: Table) -> str:
    """An entry, bold where it is the best, with the mark of its note."""
    text = rf"\textbf{{{_escaped(entry.text)}}}" if entry.best else _escaped(entry.text)
    return text + (_mark(entry.note, table) if entry.note else "")


def _mark(note: str, table: Table) -> str:
    """The number of a note, in brackets, since a raised digit alone would look like a power."""
    return rf"\textsuperscript{{({table.footnotes.index(note) + 1})}}"


def _line(text: str) -> str:
    """Text on one line, without characters that cannot be set."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def _escaped(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return re.sub("-(?=-)", r"-\\/", _line(text).translate(_SPECIAL))  # two would become a dash
