"""The effect of every axis of a study on speed and the primary figure, with its interval."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from cifar_ray.reporting import chance
from cifar_ray.reporting.figures import Figure
from cifar_ray.reporting.frame import HARDWARE, OPTIONAL, RUN, Configuration
from cifar_ray.reporting.names import STRATEGY, shortened

_NO_AXES = (RUN, HARDWARE)
_MORE_WORK = ("epochs", "steps_per_epoch")
_ALIKE = 1e-9


class _Cell(NamedTuple):
    """A configuration and a figure of its runs, higher if better.

    Of times and speeds it is the logarithm, so that differences are ratios.
    """

    config: Configuration
    values: Sequence[float]
    mean: float


class _Pair(NamedTuple):
    """Two cells that differ in the value of an axis alone; ``rest`` is what else both have set, in words."""

    rest: tuple[str, ...]
    low: _Cell
    high: _Cell

    @property
    def difference(self) -> float:
        return self.high.mean - self.low.mean

    @property
    def share(self) -> float:
        """The variance of the difference, as a multiple of that of a run."""
        return 1 / len(self.low.values) + 1 / len(self.high.values)


class Effect(NamedTuple):
    """By how much ``high`` is better than ``low`` on average over the settings that were measured with both.

    ``low`` and ``high`` are values of the axis. ``half`` is half of the difference's 95 % interval, None with one run
    of each; ``differing`` says whether the difference depends on the other settings by more than chance.
    """

    axis: str
    low: str
    high: str
    figure: Figure
    mean: float
    half: float | None
    pairs: Sequence[_Pair]
    differing: bool

    @property
    def measurable(self) -> bool:
        """Whether there is one by more than chance."""
        return self.half is not None and (self.differing or (self.mean > self.half and not self.none))

    @property
    def none(self) -> bool:
        """Whether the difference is none in the digits that are shown."""
        return self.number(self.mean) == self.number(0.0)

    def number(self, value: float) -> str:
        """A difference of what was learned, without its unit, or a ratio of speeds."""
        return self.figure.difference(value).partition(" ")[0] if self.figure.of else f"{math.exp(value):.2f}"

    @property
    def sentence(self) -> str:
        """What the axis does to the figure."""
        of, number = self.figure.of, self.number
        if of is not None:
            what, equal, more = of.noun, of.equally, f"{self.figure.difference(self.mean)} {of.more} than"
        else:
            what, equal, more = "speed", "as fast as", f"{number(self.mean)} times as fast as"
        much = equal if self.none else more
        size = f"{self.high} {'was' if self.half is None else 'is'} {much} {self.low}"
        if self.half is None:
            words = f"{size}, in one run of each, so without an interval"
        else:
            interval = f"95 % interval {number(self.mean - self.half)} to {number(self.mean + self.half)}"
            if self.mean > self.half:
                words = f"{size} ({interval})"
            elif self.differing:
                words = f"its effect on {what} depends on the rest; on average {size} ({interval})"
            else:
                words = f"no measurable effect on {what} ({size}, {interval})"
        if self.differing:
            shared = set.intersection(*(set(pair.rest) for pair in self.pairs))
            rests = [", ".join(word.lower() for word in pair.rest if word not in shared) for pair in self.pairs]
            places = [f"with {rest}" if rest else "elsewhere" for rest in rests]
            differences = [pair.difference for pair in self.pairs]
            (least, least_place), *_, (most, most_place) = sorted(zip(differences, places))
            words += f", from {number(least)} {least_place} to {number(most)} {most_place}"
        grows = any(pair.low.config.global_batch_size != pair.high.config.global_batch_size for pair in self.pairs)
        if of is not None and grows and "atch" not in self.axis:
            words += "; the global batch differs, too"
        return f"{self.axis}: {words}."


def effects(among: Sequence[Configuration], speed: Figure) -> Iterator[Effect]:
    """What every axis does to the primary figure and to ``speed``, the figure that tells how fast a run is.

    Two values of an axis are compared in runs that are alike in everything else. The interval has Student's t, or
    Tukey's range where an axis has more values, of which the two are told whose difference is the largest at least;
    the deviation is that of the seeds, taken as one over all configurations that trained on as many images as the two.
    """
    if len(among) < 3 and not any(max(config.counts) > 1 for config in among):
        return  # the difference of two runs is told anyway
    settings = _settings(among)
    strategies = any(config.devices > 1 for config in among)  # then their iterations are compared
    for axis in (name for name in settings[0] if name not in _NO_AXES):
        for figure in (speed, among[0].runs.task.primary):
            if axis == "Strategy" and figure is speed and strategies:
                continue
            effect = _effect(among, settings, axis, figure)
            if effect is not None:
                yield effect


def _settings(among: Sequence[Configuration]) -> list[dict[str, str]]:
    """What each configuration was given: axis -> value, empty where it does not apply."""
    study = among[0].runs.study
    short, batch = shortened(study), "Global batch" if study.hold == "global_batch" else "Batch per worker"
    rows = [
        {batch: str(config.column), "Topology": config.topology, "Strategy": config.strategy}
        | {name: short.get((name, value), value) for name, value in config.others if name != STRATEGY}
        for config in among
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "none" if name in OPTIONAL else "") for name in names} for row in rows]


def _effect(
    among: Sequence[Configuration], settings: Sequence[Mapping[str, str]], axis: str, figure: Figure
) -> Effect | None:
    """The effect of an axis, between the two values whose interval begins highest.

    None where no two runs differ in the axis alone.
    """
    measured = {number: (config, values) for number, config in enumerate(among) if (values := _values(config, figure))}
    cells = {number: _Cell(config, values, statistics.fmean(values)) for number, (config, values) in measured.items()}
    matches = _matches([(settings[number], cell) for number, cell in cells.items()], axis)
    if axis not in _MORE_WORK and figure.alike == "work":
        fair = {
            of: [each for each in pairs if _equal_work(each.low, each.high, figure)] for of, pairs in matches.items()
        }
        matches = {values: pairs for values, pairs in fair.items() if pairs}
    if not matches:
        return None
    spreads = {values: _spread(pairs, cells.values(), figure) for values, pairs in matches.items()}
    means = {values: statistics.fmean(pair.difference for pair in pairs) for values, pairs in matches.items()}
    levels = len({value for values in matches for value in values})

    def half(values: tuple[str, str]) -> float:
        freedom, variance = spreads[values]
        shares = [pair.share for pair in matches[values]]
        return _quantile(levels, freedom) * math.sqrt(variance) * (math.sqrt(sum(shares)) / len(shares))

    tested = [values for values in matches if spreads[values][0]]
    low, high = max(tested or matches, key=lambda values: abs(means[values]) - (half(values) if tested else 0.0))
    (freedom, variance), chance_half = spreads[low, high], half((low, high)) if tested else 0.0
    pairs, mean = matches[low, high], means[low, high]
    if mean < 0:
        low, high, mean = high, low, -mean
        pairs = [pair._replace(low=pair.high, high=pair.low) for pair in pairs]
    if not tested:
        return Effect(axis, low, high, figure, mean, None, pairs, False)
    compared = [cell for pair in pairs for cell in (pair.low, pair.high)]
    images = chance.images(figure, [cell.config for cell in compared])
    of_images = chance.of_images(abs(statistics.fmean(cell.mean for cell in compared)), images)
    variances = [max(pair.share * variance, (of_images / 2) ** 2) for pair in pairs]
    differing = _differ([pair.difference for pair in pairs], variances, freedom)
    return Effect(axis, low, high, figure, mean, max(chance_half, of_images), pairs, differing)


def _matches(cells: Sequence[tuple[Mapping[str, str], _Cell]], axis: str) -> dict[tuple[str, str], list[_Pair]]:
    """For every two values of an axis, the cells that have them and are alike in everything else."""
    alike: dict[tuple[str, ...], dict[str, _Cell]] = {}
    rest = sorted(cells[0][0].keys() - {axis}) if cells else []
    for settings, cell in cells:
        if settings[axis]:
            alike.setdefault(tuple(settings[name] for name in rest), {}).setdefault(settings[axis], cell)
    matches: dict[tuple[str, str], list[_Pair]] = {}
    for others, by_value in alike.items():
        words = tuple(f"{name} {value}" for name, value in zip(rest, others) if value)
        for low, high in itertools.combinations(sorted(by_value, key=_order), 2):
            matches.setdefault((low, high), []).append(_Pair(words, by_value[low], by_value[high]))
    return matches


def _spread(pairs: Sequence[_Pair], cells: Collection[_Cell], figure: Figure) -> tuple[int, float]:
    """Degrees of freedom and variance over the seeds, in cells that trained on as many images as those compared."""
    compared = {id(cell): cell for pair in pairs for cell in (pair.low, pair.high)}
    several = [cell for cell in cells if len(cell.values) > 1]
    alike = [
        cell
        for cell in several
        if id(cell) in compared or any(_equal_work(cell, other, figure) for other in compared.values())
    ]
    freedom = sum(len(cell.values) - 1 for cell in alike)
    squares = sum((len(cell.values) - 1) * statistics.variance(cell.values) for cell in alike)
    return freedom, squares / freedom if freedom else 0.0


def _values(config: Configuration, figure: Figure) -> list[float]:
    values = [value for trial in config.finished if (value := figure.measure(trial)) is not None]
    sign = 1 if figure.better == "high" else -1
    if figure.of is not None:
        return [sign * value for value in values]
    return [sign * math.log(value) for value in values if value > 0]


def _order(value: str) -> tuple[float, str]:
    """Numbers by size, topologies by their workers."""
    try:
        return math.prod(map(float, value.split("x"))), value
    except ValueError:
        return math.inf, value


def _equal_work(first: _Cell, other: _Cell, figure: Figure) -> bool:
    return not chance.unequal_work((first.config, other.config), figure)


@lru_cache
def _quantile(levels: int, freedom: int) -> float:
    """Standard errors in half of a 95 % interval of the difference between two of so many values."""
    if levels < 3:
        return chance.quantile(freedom)
    from scipy import stats  # takes long to import

    return float(stats.studentized_range.ppf(1 - chance.CHANCE, levels, freedom)) / math.sqrt(2)


def _differ(differences: Sequence[float], variances: Sequence[float], freedom: int) -> bool:
    """Whether differences vary by more than chance (F test)."""
    if len(differences) < 2 or max(differences) - min(differences) < _ALIKE:
        return False
    if not all(variances):
        return True
    from scipy import stats  # takes long to import

    weights = [1 / variance for variance in variances]
    mean = sum(weight * difference for weight, difference in zip(weights, differences)) / sum(weights)
    spread = sum(weight * (difference - mean) ** 2 for weight, difference in zip(weights, differences))
    return bool(stats.f.sf(spread / (len(differences) - 1), len(differences) - 1, freedom) < chance.CHANCE)
