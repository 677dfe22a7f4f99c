"""What doubling a setting does to speed and to the primary figure: at most one least-squares line for each axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from cifar_ray.reporting import chance
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import Configuration

_MORE_WORK = ("epochs", "steps_per_epoch")


def effects(among: Sequence[Configuration], speed: Figure) -> Iterator[str]:
    """A sentence for every axis of numbers and each figure, where chance does not explain the line's slope.

    ``speed`` is the figure that tells how fast a run is.
    """
    held = "global batch" if among[0].runs.study.hold == "global_batch" else "batch per worker"
    rows = [{held: str(config.column), "workers": str(config.world_size), **dict(config.others)} for config in among]
    strategies = [config.strategy for config in among]
    for axis in dict.fromkeys(name for row in rows for name in row):
        numbers = [_number(row.get(axis, "")) for row in rows]
        rest = [(at, *(pair for pair in row.items() if pair[0] != axis)) for row, at in zip(rows, strategies)]
        for figure in (speed, among[0].runs.task.primary):
            groups: dict[tuple[object, ...], list[tuple[Configuration, float, float]]] = {}
            for config, number, key in zip(among, numbers, rest):
                value = config.statistic(figure)
                if number is not None and value is not None and (figure.of is not None or value.mean > 0):
                    height = value.mean if figure.of is not None else math.log2(value.mean)
                    groups.setdefault(key, []).append((config, math.log2(number), height))
            alike = [
                group
                for group in groups.values()
                if axis in _MORE_WORK or chance.comparable(figure, [config for config, *_ in group])
            ]
            least = 0.0 if figure.of is not None else math.log2(1 + chance.LEAST)
            line = _line([[(x, y) for _, x, y in group] for group in alike])
            if line and abs(line[0]) > max(line[1], least) + 1e-9:
                grows = any(len({config.global_batch_size for config, *_ in group}) > 1 for group in alike)
                batch = "; the global batch differs, too" if grows and figure.of and "batch" not in axis else ""
                yield _sentence(axis, figure, *line, batch)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number > 0 and math.isfinite(number) else None


def _line(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float] | None:
    """Slope, and half of its 95 % interval, of lines with one slope through groups of points; None of too few."""
    from scipy import stats  # takes long to import

    several = [np.array(group) for group in groups if len({x for x, _ in group}) > 1]
    freedom = sum(map(len, several)) - len(several) - 1
    if freedom < 1:
        return None
    x, y = np.concatenate([group - group.mean(axis=0) for group in several]).T
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
