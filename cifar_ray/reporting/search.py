"""The runs of a search as its report needs them: where each stands on every axis, and how it came out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cifar_ray.config import sweep as sweeps
from cifar_ray.reporting import chance, figures, winner
from cifar_ray.reporting.frame import Runs
from cifar_ray.tasks import choosing
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking.study import CHOSEN_BY_TAG, Run, Sweep

_ABSENT = "None"
"""What is recorded of an option that is not set."""


@dataclass(frozen=True)
class Axis:
    """A field whose values were searched.

    Attributes:
        name: the parameter.
        kind: ``log`` or ``linear`` where its values were drawn from a range; ``list`` where they were listed.
        values: those of a list, numbers by size.
        is_number: whether all its values are numbers.
    """

    name: str
    kind: Literal["log", "linear", "list"]
    values: tuple[str, ...]
    is_number: bool

    def at(self, trial: Run) -> float | None:
        """Where a run stands: its number, or the place of its value in the list; None where it has none."""
        return float(self.values.index(_value(trial, self.name))) if self.kind == "list" else self.number(trial)

    def number(self, trial: Run) -> float | None:
        """A run's value as a number; None where it is none."""
        value = _value(trial, self.name)
        return float(value) if _is_number(value) else None

    def text(self, trial: Run) -> str:
        """A run's value as people read it, a number with a fraction in three digits."""
        return shown(_value(trial, self.name))


@dataclass(frozen=True)
class Candidate:
    """A run of a search, one of those among which the best was chosen.

    Attributes:
        trial: the run.
        value: what it came to; None where it did not finish, or its figure is no number.
        last: of a run that was stopped, what it had after its last epoch.
        epochs: how many it has trained.
    """

    trial: Run
    value: float | None
    last: float | None
    epochs: int


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
    def axes(self) -> list[Axis]:
        trials = [trial for trial in self.study.trials if trial.run_id] or self.study.trials
        return [_axis(name, self.study.ranges.get(name), trials) for name in self.study.axes]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The runs in their order, without those that train the best one again."""
        return [self._candidate(trial) for trial in self.study.trials if not trial.repeats]

    @cached_property
    def ranked(self) -> list[tuple[float, Candidate]]:
        """Those that finished with the figure, the best first."""
        known = [(candidate.value, candidate) for candidate in self.candidates if candidate.value is not None]
        return sorted(known, key=lambda pair: self.goal.figure.rank(pair[0]), reverse=True)

    @cached_property
    def stopped(self) -> list[tuple[float, Candidate]]:
        """Those that were stopped before their end, with what they had by then, the best first."""
        known = [(candidate.last, candidate) for candidate in self.candidates if candidate.last is not None]
        return sorted(known, key=lambda pair: self.goal.figure.rank(pair[0]), reverse=True)

    @cached_property
    def compared(self) -> tuple[int | None, list[tuple[float, Candidate]]]:
        """The runs as what the axes explain is read from: the last epoch that all of them had, and what each had then.

        Without the stopped runs, those that are left say little of values that had runs stopped. The epoch is None
        where none was stopped, or epochs are not recorded: then they are those that finished, with their figures.
        """
        known = [candidate for _, candidate in (*self.ranked, *self.stopped)]
        curves = [figures.by_step(candidate.trial, self.goal.metric) for candidate in known]
        last = min((max(curve, default=0) for curve in curves), default=0)
        values = [curve.get(last, math.nan) for curve in curves]
        if not self.stopped or not all(map(math.isfinite, values)):
            return None, self.ranked
        return last, list(zip(values, known))

    @cached_property
    def repeats(self) -> list[Run]:
        """The best run with other seeds."""
        best = self.ranked[0][1].trial.name if self.ranked else ""
        return [trial for trial in self.study.trials if trial.finished and trial.repeats == best]

    @cached_property
    def repeated(self) -> list[float]:
        """What the best run came to with other seeds."""
        return [value for trial in self.repeats if (value := self.goal.value(trial.metrics)) is not None]

    @property
    def level(self) -> float:
        """What the best run is compared by, see :func:`winner.level`."""
        return winner.level(self.ranked[0][0], self.repeated)

    @cached_property
    def images(self) -> int | None:
        """How many images the figure is a share of, see :meth:`Goal.images`."""
        return self.goal.images(candidate.trial.metrics for _, candidate in self.ranked)

    def by_luck(self, value: float, other: float) -> float | None:
        """How likely the images alone bring two values so far apart, see :func:`chance.of_shares`; None if unknown."""
        return None if self.images is None else chance.of_shares(value, other, self.images)

    @property
    def scale(self) -> float:
        """By what a value is multiplied to be shown without its unit."""
        return 100.0 if self.goal.figure.percent else 1.0

    @property
    def title(self) -> str:
        """The figure as the head of a column and as the label of an axis."""
        return self.goal.figure.title + " (%)" * self.goal.figure.percent

    def _candidate(self, trial: Run) -> Candidate:
        value, ended = self.goal.value(trial.metrics), trial.status in ("KILLED", "STOPPED")
        epochs = max({**figures.by_step(trial, "epoch_s"), **figures.by_step(trial, self.goal.metric)}, default=0)
        return Candidate(trial, value if trial.finished else None, value if ended else None, epochs)


def shown(value: str) -> str:
    """A parameter's value as people read it: ``0.0312``, ``none``, and of a path its name."""
    if value == _ABSENT:
        return "none"
    if _is_number(value) and not value.lstrip("-").isdigit():
        return f"{float(value):.3g}"
    return value.rpartition("/")[2] if value.startswith("/") else value


def _axis(name: str, drawn: str | None, trials: Sequence[Run]) -> Axis:
    values = {_value(trial, name) for trial in trials}
    is_number = all(map(_is_number, values - {_ABSENT} if drawn else values))
    if drawn is not None and is_number:
        return Axis(name, "log" if drawn == "loguniform" else "linear", (), True)
    return Axis(name, "list", tuple(sorted(values, key=float if is_number else str)), is_number)


def _value(trial: Run, name: str) -> str:
    """A parameter's value, ``None`` also where there is none, as of another model's option."""
    return trial.params.get(name) or _ABSENT


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
