"""What doubling a setting does to speed and to the primary figure: at most one least-squares line for each axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas as pd

from cifar_ray.reporting import chance
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import Configuration


def effects(among: Sequence[Configuration], speed: Figure) -> Iterator[str]:
    """A sentence for every axis of numbers and each figure, where chance does not explain the line's slope.

    ``speed`` is the figure that tells how fast a run is.
    """
    held = "global batch" if among[0].runs.study.hold == "global_batch" else "batch per worker"
    axes = [{"strategy": c.strategy, held: c.column, "workers": c.world_size, **dict(c.others)} for c in among]
    places = pd.DataFrame(axes).fillna("").astype(str)
    for axis, figure in product(places, (speed, among[0].runs.task.primary)):
        rest, numbers = places.drop(columns=axis), pd.to_numeric(places[axis], errors="coerce")
        means = pd.Series({at: each.mean for at, c in enumerate(among) if (each := c.statistic(figure))}, dtype=float)
        x = np.log2(numbers[(numbers > 0) & (numbers < math.inf)])
        y = means if figure.of else np.log2(means[means > 0])
        groups = [group for _, group in rest.assign(x=x, y=y).dropna().groupby(list(rest)) if group.x.nunique() > 1]
        if axis not in ("epochs", "steps_per_epoch"):  # which are more work
            groups = [group for group in groups if chance.comparable(figure, [among[at] for at in group.index])]
        freedom = sum(map(len, groups)) - len(groups) - 1
        if freedom > 0:  # one slope through groups of points
            x, y = np.concatenate([group[["x", "y"]] - group[["x", "y"]].mean() for group in groups]).T
            slope = float(x @ y / (x @ x))
            error = math.sqrt(float(np.sum((y - slope * x) ** 2) / freedom / (x @ x)))
            half = chance.quantile(freedom) * error
            if abs(slope) > max(half, 0.0 if figure.of else math.log2(1 + chance.LEAST)) + 1e-9:
                grows = any(len({among[at].global_batch_size for at in group.index}) > 1 for group in groups)
                batch = "; the global batch differs, too" if grows and figure.of and "batch" not in axis else ""
                yield _sentence(axis, figure, slope if figure.better == "high" else -slope, half) + f"{batch}."


def _sentence(axis: str, figure: Figure, gain: float, half: float) -> str:
    if figure.of is None:
        much, span = f"{2**gain:.2f} times as fast", f"{2 ** (gain - half):.2f} to {2 ** (gain + half):.2f}"
    else:
        much = f"{figure.difference(abs(gain))} {'better' if gain > 0 else 'worse'} in {figure.of.noun}"
        span = " to ".join(figure.difference(abs(gain) + end).partition(" ")[0] for end in (-half, half))
    return f"Doubling {axis}: {much} on average (95 % interval {span})"
