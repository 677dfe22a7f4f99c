"""What doubling a setting does to speed and to the primary figure: at most one least-squares line for each axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from cifar_ray.reporting import chance
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import Configuration

_MORE_WORK = ("epochs", "steps_per_epoch")


def effects(among: Sequence[Configuration], speed: Figure) -> Iterator[str]:
    """A sentence for every axis of numbers and each figure, where chance does not explain the line's slope.

    ``speed`` is the figure that tells how fast a run is.
    """
    from scipy import stats  # takes long to import

    held = "global batch" if among[0].runs.study.hold == "global_batch" else "batch per worker"
    axes = [{"strategy": c.strategy, held: c.column, "workers": c.world_size, **dict(c.others)} for c in among]
    places = pd.DataFrame(axes).fillna("").astype(str)
    for axis in places:
        numbers = pd.to_numeric(places[axis], errors="coerce")
        rest = places.drop(columns=axis)
        for figure in (speed, among[0].runs.task.primary):
            values = pd.Series(
                {at: each.mean for at, c in enumerate(among) if (each := c.statistic(figure))}, dtype=float
            )
            y = values if figure.of else np.log2(values[values > 0])
            x = np.log2(numbers[(numbers > 0) & (numbers < math.inf)])
            groups = [group for _, group in rest.assign(x=x, y=y).dropna().groupby(list(rest)) if group.x.nunique() > 1]
            if axis not in _MORE_WORK:
                groups = [group for group in groups if chance.comparable(figure, [among[at] for at in group.index])]
            freedom = sum(map(len, groups)) - len(groups) - 1  # one slope through groups of points
            if freedom < 1:
                continue
            x, y = np.concatenate([group[["x", "y"]] - group[["x", "y"]].mean() for group in groups]).T
            slope = float(x @ y / (x @ x))
            error = math.sqrt(float(np.sum((y - slope * x) ** 2) / freedom / (x @ x)))
            half = float(stats.t.ppf(1 - chance.CHANCE / 2, freedom)) * error
            if abs(slope) > max(half, 0.0 if figure.of else math.log2(1 + chance.LEAST)) + 1e-9:
                yield _sentence(axis, figure, slope, half)


def _sentence(axis: str, figure: Figure, slope: float, half: float) -> str:
    of, gain = figure.of, slope if figure.better == "high" else -slope
    if of is None:
        much, span = f"{2**gain:.2f} times as fast", f"{2 ** (gain - half):.2f} to {2 ** (gain + half):.2f}"
    else:
        much = f"{figure.difference(abs(gain))} {'better' if gain > 0 else 'worse'} in {of.noun}"
        low, high = (figure.difference(abs(gain) + end).partition(" ")[0] for end in (-half, half))
        span = f"{low} to {high}"
    return f"Doubling {axis}: {much} on average (95 % interval {span})."
