"""The lead of a search's best run: how far it is ahead of the second, and how likely chance alone explains that."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cifar_ray.config.errors import counted
from cifar_ray.reporting import chance
from cifar_ray.tasks import Figure


@dataclass(frozen=True)
class Lead:
    """The best run of a search against the second.

    Attributes:
        of: the figure that the search was after.
        ranked: name and value of every run that finished with it, the best first; at least one.
        repeated: values of the best run with other seeds.
        images: samples that the figure is a share of; None where it is no share, or that is not known.
    """

    of: Figure
    ranked: Sequence[tuple[str, float]]
    repeated: Sequence[float] = ()
    images: int | None = None

    @property
    def level(self) -> float:
        """What the best run is compared by: its mean with other seeds if there are any, else its value."""
        return statistics.fmean(self.repeated) if self.repeated else self.ranked[0][1]

    @property
    def ahead(self) -> float:
        """How far it is ahead of the second, in the figure's unit; less than 0 if it is behind, 0 without a second."""
        return self.of.rank(self.level) - self.of.rank(self.ranked[1][1]) if len(self.ranked) > 1 else 0.0

    @property
    def by_chance(self) -> float | None:
        """How likely the images alone set two equally good runs so far apart; None if that is not known."""
        if self.images is None or len(self.ranked) < 2:
            return None
        return chance.of_shares(self.level, self.ranked[1][1], self.images)

    @property
    def is_told(self) -> bool:
        """Whether the two differ by more than chance; False where that is not known."""
        return self.by_chance is not None and self.by_chance < chance.CHANCE

    @property
    def sentence(self) -> str:
        """What a search says of its best run, without a full stop."""
        (name, value), *others = self.ranked
        parts = [f"{name}: {self.of.named(value)}"]
        if again := len(self.repeated):
            spread = f" (standard deviation {self.apart(statistics.stdev(self.repeated))})" if again > 1 else ""
            parts.append(f"with {counted(again, 'other seed')} {self.of.text(self.level)}{spread}")
        if not others:
            return ", ".join([*parts, "the only run that finished"])
        way = "ahead of" if self.ahead > 0 else "behind"
        gap = f"{self.apart(abs(self.ahead))} {way}" if self.ahead else "as good as"
        parts.append(f"{gap} {others[0][0]}, the second of {counted(len(self.ranked), 'run')} that finished")
        known = self.ahead and self.by_chance is not None
        return ", ".join(parts) + (f" (by chance alone with p = {self.by_chance:.2g})" if known else "")

    def apart(self, difference: float) -> str:
        """A difference between two values as people read it: ``0.83 points`` between shares."""
        return f"{100 * difference:.2f} points" if self.of.percent else self.of.text(difference)
