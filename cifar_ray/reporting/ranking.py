"""Configurations by one figure, and which of them chance tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from cifar_ray.reporting.chance import Measured, Noise
from cifar_ray.reporting.figures import Figure


class Ranking(NamedTuple):
    """Configurations by one figure, the best first.

    Attributes:
        figure: which one.
        ranked: all of them.
        ties: those that are not told from the best.
        noise: what tells them apart.
        level: whether the test tells no two apart.
        single: whether there is no test, for want of a second run.
    """

    figure: Figure
    ranked: Sequence[Measured]
    ties: Sequence[Measured]
    noise: Noise
    level: bool
    single: bool

    @classmethod
    def of(cls, figure: Figure, ranked: Sequence[Measured], among: Sequence[Measured] = ()) -> Ranking:
        """Rank by a figure.

        Args:
            figure: which one.
            ranked: the best first.
            among: of whose seeds the deviation is, where it is not that of the ranked alone.
        """
        noise = Noise.of(figure, among or ranked, [best.config for best in ranked[:1]])
        ties = [other for other in ranked[1:] if not noise.distinct(ranked[0].value, other.value)]
        single = len(ranked) > 1 and not noise.freedom
        told = any(noise.distinct(first.value, other.value) for first, other in combinations(ranked, 2))
        if ranked and figure.unit == " s" and ranked[0].value.mean < 1:
            figure = replace(figure, digits=None)
        return cls(figure, ranked, ties, noise, not (single or told), single)

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

    @property
    def seen(self) -> str:
        """How large a difference the test that did not tell the ties from the best would have seen."""
        best = self.ranked[0]
        least = max((self.noise.least(best.value, tie.value) or 0.0 for tie in self.ties), default=0.0)
        counts = sorted({best.value.n, *(tie.value.n for tie in self.ties)})
        seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        return f"n = {seeds} can only reveal differences above {self.noise.text(least)}."
