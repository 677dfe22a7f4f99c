"""How much each axis of a search explains of how its runs came out."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from cifar_ray.reporting.search import Searched, places

LEAST = 10
"""Runs below which nothing is said: of nine, chance brings one axis in 20 a rank correlation beyond 0.7."""


def explained(searched: Searched) -> Any:
    """What each axis explains in the runs that are :attr:`~Searched.compared`: a pandas frame with a row for each.

    Its columns are NaN where they say nothing, as all are of an axis, or an objective, with one value:

    - ``n``: the runs that this is read from.
    - ``alone``: share of the variance that the axis explains on its own in a random forest fitted to the runs, by
      functional ANOVA (Hutter et al., "An efficient approach for assessing hyperparameter importance", 2014), which
      Optuna computes; only of axes that all runs have, and with Optuna installed.
    - ``correlation``: Spearman's rank correlation, of numbers.
    - ``between``: of other values, the share of the variance that lies between their means (eta squared).
    """
    _, values = searched.compared
    frame = pd.DataFrame(index=list(searched.axes), columns=["n", "alone", "correlation", "between"], dtype=float)
    whole = {}
    for name, axis in searched.axes.items():
        known = axis.loc[values.index].dropna()
        x, y = places(known), values[known.index]
        frame.loc[name, "n"] = len(known)
        if len(known) < LEAST or x.nunique() < 2 or y.nunique() < 2:
            continue
        if axis.dtype == "category" and not axis.cat.ordered:
            frame.loc[name, "between"] = y.groupby(x).transform("mean").var() / y.var()
        else:
            frame.loc[name, "correlation"] = x.corr(y, method="spearman")
        if len(known) == len(values):
            whole[name] = known
    frame["alone"] = pd.Series(_alone(searched, whole, values), dtype=float)
    return frame


def _alone(searched: Searched, axes: Mapping[str, Any], values: Any) -> Mapping[str, float]:
    """Functional ANOVA over these axes, by their names; empty without Optuna.

    Optuna takes ranges as even, also logarithmic ones, so it gets those as logarithms.
    """
    if not axes or importlib.util.find_spec("optuna") is None:
        return {}
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    table = pd.DataFrame({name: np.log(axis) if searched.is_log(name) else places(axis) for name, axis in axes.items()})
    space: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(sorted(set(table[name])))
        if axes[name].dtype == "category"
        else FloatDistribution(table[name].min(), table[name].max())
        for name in axes
    }
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it says that it has made a study
    try:
        study = optuna.create_study()
    finally:
        optuna.logging.set_verbosity(before)
    for params, value in zip(table.to_dict("records"), values):
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
    return optuna.importance.FanovaImportanceEvaluator(seed=0).evaluate(study)
