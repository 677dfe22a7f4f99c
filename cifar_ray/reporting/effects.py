"""What doubling a setting does to speed and to the primary figure: at most one least-squares line for each axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

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
    held = "global batch" if among[0].runs.study.hold == "global_batch" else "batch per worker"
    places = (
        pd.DataFrame(
            [
                {"strategy": config.strategy, held: config.column, "workers": config.world_size, **dict(config.others)}
                for config in among
            ]
        )
        .fillna("")
        .astype(str)
    )
    for axis in places:
        numbers = pd.to_numeric(places[axis], errors="coerce")
        x = np.log2(numbers[(numbers > 0) & (numbers < math.inf)])
        rest = places.drop(columns=axis)
        for figure in (speed, among[0].runs.task.primary):
            values = [config.statistic(figure) for config in among]
            y = pd.Series([math.nan if value is None else value.mean for value in values])
            y = y if figure.of is not None else np.log2(y[y > 0])
            points = rest.assign(x=x, y=y).dropna(subset=["x", "y"])
            groups = [group for _, group in points.groupby(list(rest)) if group.x.nunique() > 1]
            if axis not in _MORE_WORK:
                groups = [group for group in groups if chance.comparable(figure, [among[at] for at in group.index])]
            line = _line([group[["x", "y"]] for group in groups])
            least = 0.0 if figure.of is not None else math.log2(1 + chance.LEAST)
            if line and abs(line[0]) > max(line[1], least) + 1e-9:
                grows = any(len({among[at].global_batch_size for at in group.index}) > 1 for group in groups)
                batch = "; the global batch differs, too" if grows and figure.of and "batch" not in axis else ""
                yield _sentence(axis, figure, *line, batch)


def _line(groups: Sequence[Any]) -> tuple[float, float] | None:
    """Slope, and half of its 95 % interval, of lines with one slope through groups of points; None of too few."""
    from scipy import stats  # takes long to import

    freedom = sum(map(len, groups)) - len(groups) - 1
    if freedom < 1:
        return None
    x, y = np.concatenate([group - group.mean() for group in groups]).T
    slope = float(x @ y / (x @ x))
    error = math.sqrt(float(np.sum((y - slope * x) ** 2) / freedom / (x @ x)))
    return slope, float(stats.t.ppf(1 - chance.CHANCE / 2, freedom)) * error


def _sentence(axis: str, figure: Figure, slope: float, half: float, batch: str) -> str:
    of, sign = figure.of, 1 if figure.better == "high" else -1
    low, high = sorted((sign * (slope - half), sign * (slope + half)))
    if of is None:
        much, span = f"{2 ** (sign * slope):.2f} times as fast", f"{2**low:.2f} to {2**high:.2f}"
    else:
        which = "better" if sign * slope > 0 else "worse"
        ends = sorted(map(abs, (low, high)))
        much = f"{figure.difference(abs(slope))} {which} in {of.noun}"
        span = " to ".join(figure.difference(end).partition(" ")[0] for end in ends)
    return f"Doubling {axis}: {much} on average (95 % interval {span}){batch}."
