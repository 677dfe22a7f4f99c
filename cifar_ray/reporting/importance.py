"""How much each axis of a search explains of how its runs came out."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from cifar_ray.reporting.search import Searched, places

LEAST = 10
"""Runs below which nothing is said."""


def explained(searched: Searched) -> Any:
    """What each axis explains in the runs that are :attr:`~Searched.compared`: a pandas frame with a row for each.

    - ``n``: the runs that have a value of it.
    - ``alone``: share of the variance that it explains on its own in a random forest fitted to the runs, by functional
      ANOVA (Hutter et al., "An efficient approach for assessing hyperparameter importance", 2014), which Optuna
      computes; NaN without Optuna, below :data:`LEAST` runs, and of an axis that not all runs have or with one value.
    """
    _, values = searched.compared
    axes = searched.axes.reindex(values.index)
    whole = {name: axis for name, axis in axes.items() if axis.notna().all() and axis.nunique() > 1}
    enough = len(values) >= LEAST and values.nunique() > 1
    alone = pd.Series(_alone(searched, whole, values) if enough else {}, dtype=float)
    return pd.DataFrame({"n": axes.count(), "alone": alone.reindex(axes.columns)}, dtype=float)


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
        if axis.dtype == "category"
        else FloatDistribution(table[name].min(), table[name].max())
        for name, axis in axes.items()
    }
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it says that it has made a study
    study = optuna.create_study()
    optuna.logging.set_verbosity(before)
    for params, value in zip(table.to_dict("records"), values):
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
    return optuna.importance.FanovaImportanceEvaluator(seed=0).evaluate(study)
