"""A table as plain values; what it looks like is decided where it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        text: as a person reads it, with its unit unless the table's heading has it; empty when not measured.
        value: the number to sort by; None when not measured.
        std: sample standard deviation over the seeds; None with fewer than two.
        n: how many runs it is the mean of.
        best: whether it is the best of its column.
        run_ids: the runs it comes from.
        note: why it is empty or not what it seems, in words; a tooltip or footnote.
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
        key: short name, made of letters, digits and ``_``: the CSV file's name.
        title: what it shows, with the unit of its figures.
        columns: headings; the first is that of the row labels.
        rows: label of the row, and one entry for every other column.
        notes: sentences below it.
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]
    notes: Sequence[str] = field(default_factory=tuple)
