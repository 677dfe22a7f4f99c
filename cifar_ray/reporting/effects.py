"""The effect of every axis of a study on speed and accuracy, with its interval."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from cifar_ray.reporting import aggregate, peers
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.measures import ACCURACY, Figure
from cifar_ray.reporting.names import STRATEGY, shortened
from cifar_ray.tracking.study import Study

_NO_AXES = (aggregate.RUN, aggregate.HARDWARE)
_MORE_WORK = ("epochs", "steps_per_epoch")
_ALIKE = 1e-9


class _Cell(NamedTuple):
    """A configuration and a figure of its runs; of times and speeds the logarithm, so that differences are ratios."""

    one: Configuration
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


_Matched: TypeAlias = Mapping[tuple[str, ...], tuple[_Cell, _Cell]]
"""The cells with two values of an axis, by the other settings."""


class Effect(NamedTuple):
    """By how much ``high`` exceeds ``low`` on average over the settings that were measured with both.

    Attributes:
        low: the axis's value with the lower figure.
        high: the one with the higher figure.
        axis: what differs.
        figure: what it has an effect on.
        mean: the difference.
        half: half of its 95 % interval; None with one run of each.
        pairs: the cells with ``low`` and with ``high``, by the other settings.
        differing: whether the difference depends on the other settings by more than chance.
    """

    low: str
    high: str
    axis: str
    figure: Figure
    mean: float
    half: float | None
    pairs: _Matched
    differing: bool

    @property
    def measurable(self) -> bool:
        """Whether there is one by more than chance."""
        return self.half is not None and (self.differing or (self.mean > self.half and not _none(self)))

    @property
    def sentence(self) -> str:
        """What the axis does to the figure."""
        return f"{self.axis}: {_told(self)}."


def effects(study: Study, among: Sequence[Configuration], speed: Figure) -> Iterator[Effect]:
    """What every axis does to speed and accuracy.

    Two values of an axis are compared in runs that are alike in everything else. The interval has Student's t, or
    Tukey's range where an axis has more values, of which the two are told whose difference is the largest at least;
    the deviation is that of the seeds, taken as one over all configurations that trained on as many images as the two.

    Args:
        study: the runs.
        among: finished configurations of one model, data set and device.
        speed: the figure that tells how fast a run is.
    """
    if len(among) < 3 and not any(max(one.counts) > 1 for one in among):
        return  # the difference of two runs is told anyway
    short = shortened(study)
    settings = {id(one): _settings(study, one, short) for one in among}
    strategies = any(one.devices > 1 for one in among)  # then their iterations are compared
    axes = dict.fromkeys(name for known in settings.values() for name in known if name not in _NO_AXES)
    for known in settings.values():
        for axis in axes.keys() & aggregate.OPTIONAL:
            known.setdefault(axis, "none")
    for axis in axes:
        for figure in (speed, ACCURACY):
            if axis == "Strategy" and figure is speed and strategies:
                continue
            effect = _effect(among, settings, axis, figure)
            if effect is not None:
                yield effect


def _settings(study: Study, one: Configuration, short: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """What a configuration was given, by the names of the axes."""
    batch = "Global batch" if study.hold == "global_batch" else "Batch per worker"
    known = {batch: str(aggregate.column(study, one)), "Topology": one.topology, "Strategy": one.strategy}
    return known | {name: short.get((name, value), value) for name, value in one.others if name != STRATEGY}


def _effect(
    among: Sequence[Configuration], settings: Mapping[int, Mapping[str, str]], axis: str, figure: Figure
) -> Effect | None:
    """The effect of an axis, between the two values whose interval begins highest.

    None where no two runs differ in the axis alone.
    """
    cells = [_Cell(one, values) for one in among if (values := _values(one, figure))]
    found: dict[tuple[str, ...], dict[str, _Cell]] = {}
    for cell in cells:
        rest = dict(settings[id(cell.one)])
        if value := rest.pop(axis, ""):
            found.setdefault(tuple(f"{name} {rest[name]}" for name in sorted(rest)), {}).setdefault(value, cell)
    pairs: dict[tuple[str, str], dict[tuple[str, ...], tuple[_Cell, _Cell]]] = {}
    for rest_of, by_value in found.items():
        for one, other in itertools.combinations(sorted(by_value, key=_order), 2):
            fair = axis in _MORE_WORK or figure.alike != "work"
            if fair or _equal_work(by_value[one], by_value[other], figure):
                pairs.setdefault((one, other), {})[rest_of] = (by_value[one], by_value[other])
    if not pairs:
        return None
    varied = [
        (cell, (len(cell.values) - 1, (len(cell.values) - 1) * statistics.variance(cell.values)))
        for cell in cells
        if len(cell.values) > 1
    ]
    alike = {
        id(cell): {id(one): sums for one, sums in varied if one is cell or _equal_work(one, cell, figure)}
        for cell in cells
    }
    spreads = {pair: _spread(matched, alike) for pair, matched in pairs.items()}
    means = {pair: statistics.fmean(_differences(matched)) for pair, matched in pairs.items()}
    levels = len({value for pair in pairs for value in pair})

    def half(pair: tuple[str, str]) -> float:
        freedom, variance = spreads[pair]
        return _quantile(levels, freedom) * math.sqrt(variance) * _error(pairs[pair])

    tested = [pair for pair in pairs if spreads[pair][0]]
    low, high = max(tested or pairs, key=lambda pair: abs(means[pair]) - (half(pair) if tested else 0.0))
    (freedom, variance), chance = spreads[low, high], half((low, high)) if tested else 0.0
    matched, mean = pairs[low, high], means[low, high]
    if mean < 0:
        low, high, mean = high, low, -mean
        matched = {rest_of: (top, bottom) for rest_of, (bottom, top) in matched.items()}
    if not tested:
        return Effect(low, high, axis, figure, mean, None, matched, False)
    of_images = 0.0
    if figure is ACCURACY:
        of_both = [cell for pair in matched.values() for cell in pair]
        level = statistics.fmean(cell.mean for cell in of_both)
        of_images = peers.of_images(level, peers.test_images(cell.one for cell in of_both))
    variances = [max(share * variance, (of_images / 2) ** 2) for share in _shares(matched)]
    differing = _differ(_differences(matched), variances, freedom)
    return Effect(low, high, axis, figure, mean, max(chance, of_images), matched, differing)


def _spread(matched: _Matched, alike: Mapping[int, Mapping[int, tuple[int, float]]]) -> tuple[int, float]:
    """Degrees of freedom and variance over the seeds, in cells that trained on as many images as those compared."""
    every: dict[int, tuple[int, float]] = {}
    for cell in itertools.chain(*matched.values()):
        every |= alike[id(cell)]
    freedom = sum(count for count, _ in every.values())
    return freedom, sum(squares for _, squares in every.values()) / freedom if freedom else 0.0


def _shares(matched: _Matched) -> list[float]:
    """The variance of each difference, as a multiple of that of a run."""
    return [1 / len(low.values) + 1 / len(high.values) for low, high in matched.values()]


def _error(matched: _Matched) -> float:
    """The standard error of the mean difference, as a multiple of a run's deviation."""
    return math.sqrt(sum(_shares(matched))) / len(matched)


def _values(one: Configuration, figure: Figure) -> list[float]:
    values = [value for trial in one.finished if (value := figure.measure(trial)) is not None]
    if figure is ACCURACY:
        return values
    sign = 1 if figure.better == "high" else -1
    return [sign * math.log(value) for value in values if value > 0]


def _order(value: str) -> tuple[float, str]:
    """Numbers by size, topologies by their workers."""
    parts = value.split("x")
    try:
        return math.prod(map(float, parts)), value
    except ValueError:
        return math.inf, value


def _equal_work(one: _Cell, other: _Cell, figure: Figure) -> bool:
    return not peers.difference((one.one, other.one), figure)


def _differences(matched: _Matched) -> list[float]:
    return [high.mean - low.mean for low, high in matched.values()]


@lru_cache
def _quantile(levels: int, freedom: int) -> float:
    """Standard errors in half of a 95 % interval of the difference between two of so many values."""
    if levels < 3:
        return peers.quantile(freedom)
    from scipy import stats  # takes long to import

    return float(stats.studentized_range.ppf(1 - peers.CHANCE, levels, freedom)) / math.sqrt(2)


def _differ(differences: Sequence[float], variances: Sequence[float], freedom: int) -> bool:
    """Whether differences vary by more than chance (F test)."""
    if len(differences) < 2 or max(differences) - min(differences) < _ALIKE:
        return False
    if not all(variances):
        return True
    from scipy import stats  # takes long to import

    weights = [1 / variance for variance in variances]
    mean = sum(weight * one for weight, one in zip(weights, differences)) / sum(weights)
    spread = sum(weight * (one - mean) ** 2 for weight, one in zip(weights, differences)) / (len(differences) - 1)
    return bool(stats.f.sf(spread, len(differences) - 1, freedom) < peers.CHANCE)


def _none(effect: Effect) -> bool:
    """Whether a difference is none in the digits that are shown."""
    return _number(effect)(effect.mean) == _number(effect)(0.0)


def _number(effect: Effect) -> Callable[[float], str]:
    return (lambda value: f"{value:.1f}") if effect.figure is ACCURACY else lambda value: f"{math.exp(value):.2f}"


def _told(effect: Effect) -> str:
    accuracy, number = effect.figure is ACCURACY, _number(effect)
    what = "accuracy" if accuracy else "speed"
    unit, more = (" points", "more accurate than") if accuracy else (" times", "as fast as")
    much = f"as {'accurate' if accuracy else 'fast'} as" if _none(effect) else f"{number(effect.mean)}{unit} {more}"
    size = f"{effect.high} {'was' if effect.half is None else 'is'} {much} {effect.low}"
    if effect.half is None:
        told = f"{size}, in one run of each, so without an interval"
    else:
        interval = f"95 % interval {number(effect.mean - effect.half)} to {number(effect.mean + effect.half)}"
        if effect.mean > effect.half:
            told = f"{size} ({interval})"
        elif effect.differing:
            told = f"its effect on {what} depends on the rest; on average {size} ({interval})"
        else:
            told = f"no measurable effect on {what} ({size}, {interval})"
    if effect.differing:
        by_size = sorted((high.mean - low.mean, _place(rest, effect)) for rest, (low, high) in effect.pairs.items())
        (least, there), *_, (most, here) = by_size
        told += f", from {number(least)} with {there} to {number(most)} with {here}"
    grows = any(low.one.global_batch_size != high.one.global_batch_size for low, high in effect.pairs.values())
    if accuracy and grows and "atch" not in effect.axis:
        told += "; the global batch differs, too"
    return told


def _place(rest: tuple[str, ...], effect: Effect) -> str:
    """What tells the settings apart in which two values were compared."""
    shared = set.intersection(*(set(other) for other in effect.pairs))
    return ", ".join(word.lower() for word in rest if word not in shared)
