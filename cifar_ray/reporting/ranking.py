"""Configurations by one figure, and which of them chance tells apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from cifar_ray.reporting import chance
from cifar_ray.reporting.figures import Figure, Statistic
from cifar_ray.reporting.frame import Configuration


class Measured(NamedTuple):
    """A configuration and one of its figures."""

    config: Configuration
    value: Statistic


class Ranking(NamedTuple):
    """Configurations by one figure, the best first.

    Attributes:
        figure: which one.
        ranked: all of them.
        ties: those that are not told from the best.
        untested: those of the ties that have one run, as the best has, so that there is no test.
        images: how many test images limit how exact the figure is.
        level: whether the test tells no two apart, nor finds an effect of an axis.
        single: whether there is no test, for want of a second run.
    """

    figure: Figure
    ranked: Sequence[Measured]
    ties: Sequence[Measured]
    untested: Sequence[Measured]
    images: float | None
    level: bool
    single: bool

    @classmethod
    def of(cls, figure: Figure, ranked: Sequence[Measured], effect: bool = False) -> Ranking:
        """Rank by a figure; ``effect``: whether an axis is known to have one."""
        images = chance.images(figure, [measured.config for measured in ranked])
        distinct = [chance.distinct(ranked[0].value, other.value, images) for other in ranked[1:]]
        ties = [other for other, are in zip(ranked[1:], distinct) if not are]
        untested = [other for other, are in zip(ranked[1:], distinct) if are is None]
        tested = [chance.distinct(first.value, other.value, images) for first, other in combinations(ranked, 2)]
        single = 0 < len(untested) == len(distinct)
        level = not effect and None not in distinct and not any(tested)
        if ranked and figure.unit == " s" and ranked[0].value.mean < 1:
            figure = replace(figure, digits=None)
        return cls(figure, ranked, ties, untested, images, level, single)

    @property
    def tested(self) -> list[Measured]:
        """The ties by the test."""
        return [tie for tie in self.ties if tie not in self.untested]

    @property
    def same(self) -> bool:
        """Whether there is no test, and all figures read alike."""
        return self.single and self.span == self.figure.text(self.ranked[0].value.mean)

    @property
    def span(self) -> str:
        """The lowest figure and the highest."""
        low, *_, high = sorted(measured.value.mean for measured in self.ranked)
        least, most = self.figure.number(low), self.figure.text(high)
        return most if self.figure.text(low) == most else f"{least} to {most}"

    def none_better(self, claim: str) -> str:
        """A claim that the test tells none from the others."""
        best, *rest = self.ranked
        return f"{claim}: {self.span} in {len(rest) + 1} configurations ({self.test(best, rest)})."

    def test(self, best: Measured, others: Sequence[Measured]) -> str:
        """The test that did not tell these apart, and how large a difference it would have seen."""
        images = self.images is not None and math.isfinite(self.images)
        against = "the seeds and the size of the test set" if images else "the seeds"
        least = max((chance.visible(best.value, other.value, self.images) or 0.0 for other in others), default=0.0)
        counts = sorted({best.value.n, *(other.value.n for other in others)})
        runs = f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")
        shown = self.figure.difference(least)
        return f"Student's t-test over {against}, 5 %; with {runs} it sees differences above {shown}"
