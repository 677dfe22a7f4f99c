"""The trials of a search as pandas frames: what each has of the objective, and where it stands on every axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from cifar_ray.config import sweep as sweeps
from cifar_ray.reporting import figures
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.winner import Lead
from cifar_ray.tasks import choosing
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking.study import CHOSEN_BY_TAG, Run, Sweep


@dataclass(frozen=True, eq=False)
class Searched:
    """A search by its runs, with the figures that they were made for."""

    runs: Runs

    @property
    def study(self) -> Sweep:
        return self.runs.study

    @cached_property
    def goal(self) -> Goal:
        """What it was after: its objective, or the task's primary figure on the images that choose."""
        task = self.study.task
        if self.study.objective is not None:
            return Goal(*sweeps.parse_objective(self.study.objective), task)
        by_validation = any(trial.tags.get(CHOSEN_BY_TAG) == "val" for trial in self.study.trials)
        return choosing.by_primary(task, "val" if by_validation else "test")

    @cached_property
    def objective(self) -> Figure:
        """The goal as a table's column or a chart's axis has it, a share in percent."""
        of = self.goal.figure

        def measure(trial: Run) -> float | None:
            value = self.goal.value(trial.metrics)
            return None if value is None else value * (100 if of.percent else 1)

        return Figure("objective", of.title + " (%)" * of.percent, measure, digits=2 if of.percent else None, of=of)

    @cached_property
    def trials(self) -> Any:
        """A row for every trial: those that finished, the best first; then the stopped ones; then the rest.

        The best one with other seeds is among the rest. Columns:

        - ``trial``: its run.
        - ``end``: how it ended, in a word.
        - ``epochs``: how many it has trained.
        - ``value``: of the objective; of a stopped one, after its last epoch; NaN of the rest.
        """
        rows = []
        for trial in self.study.trials:
            end = "other seed" if trial.repeats else "finished" if trial.finished else trial.state
            curves = [figures.by_step(trial, name) for name in ("epoch_s", self.goal.metric)]
            value = self.goal.value(trial.metrics) if end in ("finished", "stopped") else None
            rows.append((trial, end, max({**curves[0], **curves[1]}, default=0), math.nan if value is None else value))
        rank = self.goal.figure.rank
        rows.sort(key=lambda row: (math.isnan(row[3]), row[1] != "finished", -rank(row[3])))
        return pd.DataFrame(rows, columns=["trial", "end", "epochs", "value"]).astype({"value": float})

    @property
    def known(self) -> Any:
        """The trials with a value, which are the first rows."""
        return self.trials[self.trials.value.notna()]

    @property
    def values(self) -> Any:
        """Their objective in the unit of its title."""
        return self.known.value * (100 if self.goal.figure.percent else 1)

    @property
    def ranked(self) -> Any:
        """Those of them that finished; the others were stopped before the end."""
        return self.known[self.known.end == "finished"]

    @cached_property
    def axes(self) -> Any:
        """The :attr:`known` trials' values, a column for each axis.

        A column has numbers where the values were drawn from a range, NaN where a trial has none; else categories.
        """
        return pd.DataFrame({name: self._axis(name) for name in self.study.axes})

    def _axis(self, name: str) -> Any:
        values = [setting(trial, name) for trial in self.known.trial]
        numbers = pd.Series([as_number(value) for value in values], dtype=float)
        if name in self.study.ranges:
            return numbers
        return pd.Categorical(values, sorted(set(values), key=float if numbers.notna().all() else str))

    def is_log(self, axis: str) -> bool:
        """Whether an axis's values were drawn from a logarithmic range."""
        return self.study.ranges.get(axis) == "loguniform"

    @cached_property
    def compared(self) -> tuple[int | None, Any]:
        """The last epoch that all known trials reached, and the value of each after it, by its row.

        Where none was stopped, or they share no recorded epoch, the epoch is None and the values are the final ones.
        """
        curves = pd.DataFrame([figures.by_step(trial, self.goal.metric) for trial in self.known.trial])
        common = curves.set_index(self.known.index).replace([math.inf, -math.inf], math.nan).dropna(axis="columns")
        if len(self.ranked) == len(self.known) or common.empty:
            return None, self.ranked.value
        return int(max(common)), common[max(common)]

    @cached_property
    def lead(self) -> Lead | None:
        """The best run against the second; None where none finished with the objective."""
        if self.ranked.empty:
            return None
        ranked = [(trial.name, value) for trial, value in zip(self.ranked.trial, self.ranked.value)]
        repeats = [trial for trial in self.study.trials if trial.finished and trial.repeats == ranked[0][0]]
        again = [value for trial in repeats if (value := self.goal.value(trial.metrics)) is not None]
        images = self.goal.images(trial.metrics for trial in self.ranked.trial)
        return Lead(self.goal.figure, ranked, again, images)


def setting(trial: Run, axis: str) -> str:
    """A trial's value on an axis, as it is recorded; ``None`` also where it has none, as of another model's option."""
    return trial.params.get(axis) or "None"


def as_number(value: str) -> float | None:
    """A parameter's value as a number; None where it is none."""
    try:
        return float(value)
    except ValueError:
        return None


def shown(value: str) -> str:
    """A parameter's value as people read it: ``0.0312``, ``none``, and of a path its name."""
    if (number := as_number(value)) is not None and not value.lstrip("-").isdigit():
        return f"{number:.3g}"
    return "none" if value == "None" else value.rpartition("/")[2] if value.startswith("/") else value


def places(axis: Any) -> Any:
    """A column of :attr:`Searched.axes` as numbers; of categories, their places in the list."""
    return axis.cat.codes.astype(float) if axis.dtype == "category" else axis
