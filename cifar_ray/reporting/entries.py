"""How a figure of a configuration becomes an entry of a table, and which entries are the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.measures import Figure
from cifar_ray.reporting.study import Trial
from cifar_ray.reporting.table import Entry


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
    note = "; ".join(filter(None, (lacking, lost)))
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


def noise(one: Statistic, other: Statistic, difference: float, figure: Figure) -> str:
    """Whether two means of a figure can be told apart, as the end of a sentence on their difference."""
    stds = [statistic.std for statistic in (one, other) if statistic.std is not None]
    if len(stds) < 2:
        return "with one run of a configuration (n=1) that cannot be told from noise"
    if difference <= max(stds):
        return f"that lies within one standard deviation over the seeds ({figure.number(max(stds))}), and may be noise"
    return f"that is more than one standard deviation over the seeds ({figure.number(max(stds))})"


def marked(rows: Sequence[tuple[str, list[Entry]]], better: Sequence[str]) -> list[tuple[str, list[Entry]]]:
    """The rows with the best entry of every column marked, where two or more differ.

    A mean over the lucky part of the runs is no candidate.
    """
    found = [(label, list(entries)) for label, entries in rows]
    for position, direction in enumerate(better):
        candidates = [entry for _, entries in rows if not (entry := entries[position]).partial]
        known = [entry.value for entry in candidates if entry.value is not None]
        if not direction or len(set(known)) < 2:
            continue
        best = min(known) if direction == "low" else max(known)
        for _, entries in found:
            if entries[position].value == best and not entries[position].partial:
                entries[position] = dataclasses.replace(entries[position], best=True)
    return found
