"""How a figure of a configuration becomes an entry of a table, and which entries are the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.table import Entry
from cifar_ray.tracking.study import Trial


def measured(one: Configuration, figure: Figure, why_empty: Callable[[Trial], str]) -> Entry:
    """A figure of a configuration over its finished runs; empty, with the reason, when none has it."""
    found = one.statistic(figure.measure)
    lost = reasons(one)
    if found is None:
        why = "; ".join(dict.fromkeys(why_empty(trial) for trial in one.finished))
        return Entry(note="; ".join(filter(None, (why, lost))))
    runs = len(one.finished)
    missing = runs - found.n
    lacking = f"{missing} of {runs} finished runs do not have it" if missing else ""
    note = "; ".join(filter(None, (*figure.remarks(one.finished), lacking, lost)))
    text, ids = figure.text(found, runs), found.run_ids
    return Entry(text, found.mean, found.std, found.n, run_ids=ids, note=note, partial=missing > 0)


def reasons(one: Configuration) -> str:
    """Why some of its runs are not in its figures."""
    return "; ".join(outcome(trial) for trial in one.trials if not trial.finished)


def outcome(trial: Trial) -> str:
    """What became of a run, such as ``bs16 2x2 seed1 FAILED: out of memory``."""
    return f"{trial.name} {trial.status}" + (f": {trial.reason.rstrip('.')}" if trial.reason else "")


def unrecorded(_: Trial) -> str:
    """Why an entry is empty where nothing more is known."""
    return "the run did not record it"


def unsampled(_: Trial) -> str:
    """Why a machine's load is not known."""
    return "no sample was taken while it trained"


def told_apart(one: Statistic, other: Statistic) -> bool:
    """Whether two means of a figure differ by more than the seeds do; not known with one run of either."""
    stds = [statistic.std for statistic in (one, other) if statistic.std is not None]
    return len(stds) == 2 and abs(one.mean - other.mean) > max(stds)


def noise(one: Statistic, other: Statistic, figure: Figure) -> str:
    """Whether two means of a figure can be told apart, as the end of a sentence on their difference."""
    stds = [statistic.std for statistic in (one, other) if statistic.std is not None]
    if len(stds) < 2:
        return "with one run of a configuration (n=1) that cannot be told from noise"
    if not told_apart(one, other):
        return f"that lies within one standard deviation over the seeds ({figure.number(max(stds))}), and may be noise"
    return f"that is more than one standard deviation over the seeds ({figure.number(max(stds))})"


def best(found: Sequence[tuple[float | None, bool]], better: str) -> float | None:
    """The best of some values, each with whether only a part of its runs has it; None where not two differ.

    A mean over the lucky part of the runs is no candidate.
    """
    known = [value for value, partial in found if value is not None and not partial]
    if not better or len(set(known)) < 2:
        return None
    return min(known) if better == "low" else max(known)


def marked(rows: Sequence[tuple[str, list[Entry]]], better: Sequence[str]) -> list[tuple[str, list[Entry]]]:
    """The rows with the best entry of every column marked, where there is one."""
    found = [(label, list(entries)) for label, entries in rows]
    for position, direction in enumerate(better):
        column = [entries[position] for _, entries in rows]
        top = best([(entry.value, entry.partial) for entry in column], direction)
        for _, entries in found:
            if top is not None and entries[position].value == top and not entries[position].partial:
                entries[position] = dataclasses.replace(entries[position], best=True)
    return found
