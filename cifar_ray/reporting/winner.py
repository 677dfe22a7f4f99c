"""The winner of a search in words: how far it is ahead of the second, and how much of that may be luck."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cifar_ray.config.errors import counted
from cifar_ray.reporting import chance
from cifar_ray.tasks import Figure


def level(value: float, repeated: Sequence[float]) -> float:
    """What the best run is compared by: its mean with other seeds if there are any, else its value."""
    return statistics.mean(repeated) if repeated else value


def lead(of: Figure, value: float, second: float) -> float:
    """How far a value is ahead of another, in the figure's unit; less than 0 if it is behind."""
    return of.rank(value) - of.rank(second)


def apart(of: Figure, value: float, other: float) -> str:
    """How far two values are apart, as people read it: ``0.83 points`` between shares."""
    return f"{abs(value - other) * 100:.2f} points" if of.percent else of.text(abs(value - other))


def probability(value: float) -> str:
    """A probability as people read it: ``14 %``."""
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %" if value >= 1e-4 else "less than 0.01 %"


def _by_chance(level: float, second: float, images: int | None) -> str:
    """How likely chance alone sets two runs so far apart, in brackets behind the lead; ``images`` as of a goal."""
    if level == second:
        return ""
    if images is None:
        return " (how much of that is chance, one run of the second does not tell)"
    likely = probability(chance.of_shares(level, second, images))
    return f" (if both were equally good, chance would set them this far apart with a probability of {likely})"


def sentence(
    of: Figure,
    name: str,
    value: float,
    repeated: Sequence[float],
    second: tuple[str, float] | None,
    finished: int,
    images: int | None,
) -> str:
    """What a search says of its best run, without a full stop.

    Args:
        of: the figure that the search was after.
        name: of the run.
        value: its figure.
        repeated: values of the same run with other seeds.
        second: name and value of the next best; None where no other run finished.
        finished: how many finished, repeats aside.
        images: samples that the figure is a share of; None where it is no share, or that is not known.
    """
    compared, parts = level(value, repeated), [f"{name}: {of.named(value)}"]
    if repeated:
        spread = f" (standard deviation {apart(of, statistics.stdev(repeated), 0.0)})" if len(repeated) > 1 else ""
        parts.append(f"with {counted(len(repeated), 'other seed')} {of.text(compared)}{spread}")
    if second is None:
        return ", ".join([*parts, "the only run that finished"])
    ahead, gap = lead(of, compared, second[1]), apart(of, compared, second[1])
    words = f"{gap} {'ahead of' if ahead > 0 else 'behind'}" if ahead else "as good as"
    parts.append(f"{words} {second[0]}, the second of {counted(finished, 'run')} that finished")
    return ", ".join(parts) + _by_chance(compared, second[1], images)
