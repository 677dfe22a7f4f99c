"""How much each axis of a search explains of how its runs came out."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from cifar_ray.reporting.search import Axis, Searched

LEAST = 10
"""Runs below which nothing is said: of nine, chance brings one axis in 20 a rank correlation beyond 0.7."""

_VALUE = "\0value"  # the column of what a search was after; no axis has that name


@dataclass(frozen=True)
class Explained:
    """What one axis explains.

    Attributes:
        axis: which one.
        n: the runs that this is read from.
        alone: share of the variance that the axis explains on its own in a random forest fitted to the runs, by
            functional ANOVA (Hutter et al., "An efficient approach for assessing hyperparameter importance", 2014);
            None without Optuna, which computes it.
        correlation: Spearman's rank correlation, of numbers.
        between: of other values, the share of the variance that lies between their means (eta squared).
        why: why there is none of these; empty where there is.
    """

    axis: Axis
    n: int
    alone: float | None = None
    correlation: float | None = None
    between: float | None = None
    why: str = ""


def explained(searched: Searched) -> list[Explained]:
    """What each axis explains in the runs that are :attr:`~Searched.compared`, in the order of the axes."""
    _, compared = searched.compared
    columns = {axis.name: [axis.at(candidate.trial) for _, candidate in compared] for axis in searched.axes}
    table = pd.DataFrame({**columns, _VALUE: [value for value, _ in compared]}, dtype=float)
    plain = [_explained(axis, table[[axis.name, _VALUE]].dropna()) for axis in searched.axes]
    alone = _alone([found.axis for found in plain if not found.why and found.n == len(table)], table)
    return [replace(found, alone=alone.get(found.axis.name)) for found in plain]


def _explained(axis: Axis, table: Any) -> Explained:
    x, y, n = table[axis.name], table[_VALUE], len(table)
    if n < LEAST:
        return Explained(axis, n, why=f"too few trials: {n}, and below {LEAST} chance explains as much")
    if x.nunique() < 2 or y.nunique() < 2:
        which = "the axis" if x.nunique() < 2 else "the objective"
        return Explained(axis, n, why=f"{which} has one value in all of them")
    if axis.is_number:
        return Explained(axis, n, correlation=float(x.corr(y, method="spearman")))
    means = y.groupby(x).transform("mean")
    return Explained(axis, n, between=float(((means - y.mean()) ** 2).sum() / ((y - y.mean()) ** 2).sum()))


def _alone(axes: Sequence[Axis], table: Any) -> Mapping[str, float]:
    """Functional ANOVA over these axes, by their names; empty without Optuna.

    Optuna takes ranges as even, also logarithmic ones, so it gets those as logarithms.
    """
    if not axes or importlib.util.find_spec("optuna") is None:
        return {}
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    columns = {axis.name: table[axis.name].map(math.log) if axis.kind == "log" else table[axis.name] for axis in axes}
    space: dict[str, BaseDistribution] = {
        axis.name: CategoricalDistribution(sorted(set(columns[axis.name])))
        if axis.kind == "list"
        else FloatDistribution(columns[axis.name].min(), columns[axis.name].max())
        for axis in axes
    }
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it says that it has made a study
    try:
        study = optuna.create_study()
    finally:
        optuna.logging.set_verbosity(before)
    for row, value in enumerate(table[_VALUE]):
        params = {name: column[row] for name, column in columns.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
    return optuna.importance.FanovaImportanceEvaluator(seed=0).evaluate(study)
