"""A published figure, and our own beside it, as entries of a table."""

from __future__ import annotations

from dataclasses import replace

from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.table import Entry

Others = tuple[tuple[str, str], ...]
"""Names and values of what else tells our runs apart."""

COMPUTED = "computed here from the published figures"
"""Note on what follows from published figures, but was not published itself."""


def told(device: str, others: Others) -> list[str]:
    """What tells our runs apart, for the label of a row."""
    return [*([device] if device else []), *(f"{name}={value}" for name, value in others)]


def plain(value: float, digits: int | None, unit: str) -> Entry:
    """A published figure; with as many decimals as it is written with where ``digits`` is None."""
    return Entry(f"{value:,}{unit}" if digits is None else f"{value:,.{digits}f}{unit}", value, note="as published")


def share(value: float, of: float) -> Entry:
    """A published figure as a share of another one."""
    return replace(plain(value / of * 100, 1, " %"), note=COMPUTED)


def own(one: Configuration, figure: Figure) -> Entry:
    """A figure of ours."""
    found = one.statistic(figure.measure)
    if found is None:
        return Entry(note="not recorded")
    note = "; ".join((f"global batch {one.global_batch_size}", *figure.remarks(one.finished)))
    text = figure.text(found, len(one.finished))
    return Entry(text, found.mean, found.std, found.n, run_ids=found.run_ids, note=note)


def relative(one: Configuration, other: Configuration, figure: Figure, note: str) -> Entry:
    """One's figure as a share of the other's."""
    value, base = one.statistic(figure.measure), other.statistic(figure.measure)
    if value is None or base is None or base.mean <= 0:
        return Entry(note="not recorded")
    percent = value.mean / base.mean * 100
    ids = tuple(dict.fromkeys((*value.run_ids, *base.run_ids)))
    return Entry(f"{percent:.1f} %", percent, None, value.n, run_ids=ids, note=note)
