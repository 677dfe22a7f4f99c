"""Which runs can be compared: those of equal work; and which differences are more than chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from typing import NamedTuple

from cifar_ray.reporting.figures import Figure, Statistic, trained
from cifar_ray.reporting.frame import Configuration

_SAME = 0.02
"""Share by which equal work may differ: an epoch leaves out the images that do not fill a global batch."""

CHANCE = 0.05
"""Probability of a difference by chance below which two means are called distinct."""

LEAST = 0.01
"""Share of the larger mean from which a difference counts as one, besides chance, but for shares of the test images."""


def unequal_work(among: Sequence[Configuration], figure: Figure) -> str:
    """How the work of the finished runs that have a figure differs, or that none knows; empty where it is equal."""
    images = [trained(trial) or math.nan for config in among for trial, _ in config.measured(figure)]
    unit = among[0].runs.task.spec.unit if among else ""
    if any(map(math.isnan, images)):
        return f"not every run has recorded how many {unit} it trained on" if len(images) > 1 else ""
    if not images or max(images) <= (1 + _SAME) * min(images):
        return ""
    return f"the runs trained on different numbers of {unit} ({min(images):,.0f} to {max(images):,.0f})"


def comparable(figure: Figure, among: Sequence[Configuration]) -> bool:
    """Whether the finished runs of these configurations share what a figure depends on besides the settings."""
    finished = [config for config in among if config.finished]
    if figure.alike == "work":
        return not unequal_work(finished, figure)
    shared = {"": (), "step": ("global_batch_size", "device"), "device": ("device",)}[figure.alike]
    return len({tuple(getattr(config, name) for name in shared) for config in finished}) < 2


class Measured(NamedTuple):
    """A configuration and one of its figures."""

    config: Configuration
    value: Statistic


def measured(figure: Figure, among: Sequence[Configuration]) -> list[Measured]:
    """Those that have a figure."""
    pairs = [(config, config.statistic(figure)) for config in among]
    return [Measured(config, value) for config, value in pairs if value is not None]


class Noise(NamedTuple):
    """How far chance alone sets two means of a figure apart: Student's t-test with one deviation for all.

    The deviation is that of the seeds, pooled over configurations: of two or three seeds, one for each configuration
    hardly tells anything apart, and a single run has none. Differences are in the figure's unit if it is one of what
    was learned, else logarithms of ratios. ``freedom`` is 0 where every configuration has one run, and there is no
    test; ``images`` limit how exact the figure is, see :func:`images`.
    """

    figure: Figure
    variance: float
    freedom: int
    images: float | None

    @classmethod
    def of(cls, figure: Figure, among: Sequence[Measured]) -> Noise:
        """Of configurations."""
        values = [each.value for each in among if each.value.std is not None]
        scales = [1.0 if figure.of is not None else value.mean or math.inf for value in values]
        freedom = sum(value.n - 1 for value in values)
        squares = sum((of.n - 1) * ((of.std or 0.0) / scale) ** 2 for of, scale in zip(values, scales))
        variance = squares / freedom if freedom else 0.0
        return cls(figure, variance, freedom, images(figure, [each.config for each in among]))

    def difference(self, first: Statistic, other: Statistic) -> float:
        """By how much the first is larger."""
        if self.figure.of is not None:
            return first.mean - other.mean
        return math.log(first.mean / other.mean) if first.mean > 0 and other.mean > 0 else 0.0

    def least(self, first: Statistic, other: Statistic) -> float | None:
        """The smallest difference of two means that is more than chance; None where there is no test.

        It is also at least 1 %, or of a share two standard errors of the difference between two shares of so many
        test images: seeds that agree do not make the test larger.
        """
        if not self.freedom:
            return None
        by_seeds = quantile(self.freedom) * math.sqrt(self.variance * (1 / first.n + 1 / other.n))
        if self.figure.of is None:
            return max(by_seeds, math.log1p(LEAST))
        if self.images is None:
            return max(by_seeds, LEAST * max(abs(first.mean), abs(other.mean)))
        share = min(max((first.mean + other.mean) / 200, 0.0), 1.0)
        return max(by_seeds, 200 * math.sqrt(2 * share * (1 - share) / self.images))

    def distinct(self, first: Statistic, other: Statistic) -> bool | None:
        """Whether two means differ by more than chance; None where there is no test."""
        least = self.least(first, other)
        return None if least is None else abs(self.difference(first, other)) > least

    def text(self, difference: float) -> str:
        """A difference with its unit: ``3.3 points``, or of ratios ``24 %``."""
        if self.figure.of is not None:
            return self.figure.difference(difference)
        percent = 100 * math.expm1(difference)
        return f"{percent:.{0 if percent >= 10 else 1}f} %"


@cache
def quantile(freedom: int) -> float:
    """Of Student's t, for a test of either side."""
    from scipy import stats  # takes long to import

    return float(stats.t.ppf(1 - CHANCE / 2, freedom))


@dataclass(frozen=True)
class Ranking:
    """Configurations by one figure, the best first, with those that are not told from the best."""

    figure: Figure
    ranked: Sequence[Measured]
    ties: Sequence[Measured]
    noise: Noise

    @classmethod
    def of(cls, figure: Figure, measured: Sequence[Measured], among: Sequence[Measured] = ()) -> Ranking:
        """Rank by a figure, with the seeds' deviation ``among`` those of as much work as the best."""
        ranked = sorted(measured, key=lambda each: each.value.mean, reverse=figure.better == "high")
        first = ranked[0].config if ranked else None
        like = [
            each for each in among or ranked if first in (None, each.config) or comparable(figure, (first, each.config))
        ]
        noise = Noise.of(figure, like)
        ties = [other for other in ranked[1:] if not noise.distinct(ranked[0].value, other.value)]
        if ranked and figure.unit == " s" and ranked[0].value.mean < 1:
            figure = replace(figure, digits=None)
        return cls(figure, ranked, ties, noise)

    @property
    def single(self) -> bool:
        """Whether there is no test, for want of a second run."""
        return len(self.ranked) > 1 and not self.noise.freedom

    @cached_property
    def level(self) -> bool:
        """Whether none is ahead: the test tells no two apart, or without a test, all figures read alike."""
        if self.single:
            return self.span == self.figure.text(self.ranked[0].value.mean)
        pairs = combinations([each.value for each in self.ranked], 2)
        return len(self.ranked) > 1 and not any(self.noise.distinct(*pair) for pair in pairs)

    @property
    def span(self) -> str:
        """The lowest figure and the highest."""
        low, *_, high = sorted(each.value.mean for each in self.ranked)
        least, most = self.figure.text(low), self.figure.text(high)
        return most if least == most else f"{self.figure.number(low)} to {most}"

    @property
    def seen(self) -> str:
        """How large a difference the test that did not tell the ties from the best would have seen."""
        best = self.ranked[0]
        least = max(self.noise.least(best.value, tie.value) or 0.0 for tie in self.ties)
        counts = {each.value.n for each in (best, *self.ties)}
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
        return f"n = {seeds} can only reveal differences above {self.noise.text(least)}."


def images(figure: Figure, among: Iterable[Configuration]) -> float | None:
    """How many images limit how exact a share is, infinitely many where they set no limit; None for all else.

    They are the fewest of the test, or of validation if the share is of it, that any finished run was evaluated on.
    """
    if figure.of is None or not figure.of.percent:
        return None
    known = [trial.metrics.get(trial.task.counted_on(figure.subset)) for config in among for trial in config.finished]
    return min(filter(None, known), default=math.inf) if figure.of.binomial else math.inf


def of_shares(first: float, second: float, images: int) -> float:
    """How likely two equal shares, each of so many images, come out as far apart as these, either way.

    By Fisher's exact test. The highest of several may so be tested against the second without a correction for their
    number: Hung and Fithian, "Rank verification for exponential families", Annals of Statistics 47 (2019).
    """
    from scipy import stats  # takes long to import

    right = [round(min(max(share, 0.0), 1.0) * images) for share in (first, second)]
    return float(stats.fisher_exact([[count, images - count] for count in right]).pvalue)


def best_by_luck(share: float, images: int, among: int) -> float:
    """How far the best of so many equal shares of so many images is above them all by luck, on average.

    The expected largest of normal deviates, by Blom's approximation (1958).
    """
    from scipy import stats  # takes long to import

    return float(stats.norm.ppf((among - 0.375) / (among + 0.25))) * math.sqrt(share * (1 - share) / images)
