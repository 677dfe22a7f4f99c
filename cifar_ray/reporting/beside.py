"""A published figure, and our own beside it, as entries of a table."""

from __future__ import annotations

from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.table import Entry

Others = tuple[tuple[str, str], ...]
"""Names and values of what else tells our runs apart."""


def told(device: str, others: Others) -> list[str]:
    """What tells our runs apart, for the label of a row."""
    return [*([device] if device else []), *(f"{name}={value}" for name, value in others)]


def plain(value: float, digits: int, unit: str) -> Entry:
    """A published figure."""
    return Entry(f"{value:,.{digits}f}{unit}", value, note="as published")


def share(value: float, of: float) -> Entry:
    """A published figure as a share of another one."""
    return plain(value / of * 100, 1, " %")


def own(one: Configuration, figure: Figure) -> Entry:
    """A figure of ours."""
    found = one.statistic(figure.measure)
    if found is None:
        return Entry(note="not recorded")
    note = f"global batch {one.global_batch_size}"
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
