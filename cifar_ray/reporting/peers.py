"""Which runs can be compared: those of equal work; which differences are more than chance; and outliers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cifar_ray.reporting import aggregate
from cifar_ray.reporting.aggregate import Configuration, Statistic
from cifar_ray.reporting.measures import ACCURACY, F1, PRECISION, RECALL, SPECIFICITY, Figure
from cifar_ray.tracking.study import Trial

_SAME = 0.02
"""Share by which equal work may differ: an epoch leaves out the images that do not fill a global batch."""

_FAR = 3.5
"""Modified z-score (0.6745 times the distance to the median, over the median absolute deviation) from which
Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993), call a value an outlier. Unlike a standard deviation,
it holds with a few runs, as the outlier does not widen it; of fewer than three runs none is one."""

CHANCE = 0.05
"""Probability of a difference by chance below which two means are called distinct."""

SHARES = (ACCURACY, PRECISION, RECALL, F1)
"""Figures that are shares of the test images, or nearly so; how many images there are limits how exact they are."""

_LEAST_POINTS = 5.0
"""Percentage points that an outlier lies below the median at the least: equal runs would make any other one far."""

_LEAST = 0.01
"""Share of the larger mean from which a difference counts as one, besides chance; that of shares of the test images
has the size of the test set."""

_TEST_IMAGES = aggregate.metric("test/images")


@dataclass(frozen=True)
class Outlier:
    """A run whose accuracy is far below that of the other seeds of its configuration.

    Attributes:
        trial: the run.
        accuracy: its test accuracy after the last epoch, in percent.
        below: percentage points between the median and it.
        peers: how many runs the median is of, itself among them.
    """

    trial: Trial
    accuracy: float
    below: float
    peers: int


def equal_work(trials: Iterable[Trial]) -> bool:
    """Whether runs of one model and data set trained on as many images, and so may be compared by their seconds.

    Where one of several has not recorded its images, that is not known, and they are not compared.
    """
    done = [aggregate.images_trained(trial) for trial in trials]
    known = [images for images in done if images is not None]
    return len(done) < 2 or (len(known) == len(done) and max(known) <= (1 + _SAME) * min(known))


def difference(among: Iterable[Configuration], figure: Figure) -> str:
    """How the work of the finished runs that have a figure differs, as a sentence begins; empty where it is equal."""
    trials = [trial for trial in _finished(among) if figure.measure(trial) is not None]
    if equal_work(trials):
        return ""
    known = [images for trial in trials if (images := aggregate.images_trained(trial)) is not None]
    if len(known) < len(trials):
        return "not every run has recorded how many images it trained on"
    return f"the runs trained on different numbers of images ({min(known):,.0f} to {max(known):,.0f})"


def better(figure: Figure, among: Sequence[Configuration]) -> str:
    """Which way a figure of these configurations is better; empty where they cannot be compared by it."""
    finished = [one for one in among if one.finished]
    fair = {
        "": True,
        "work": equal_work(trial for trial in _finished(finished) if figure.measure(trial) is not None),
        "step": len({(one.global_batch_size, one.device) for one in finished}) < 2,
        "device": len({one.device for one in finished}) < 2,
    }
    return figure.better if fair[figure.alike] else ""


def visible(one: Statistic, other: Statistic, images: float | None = None) -> float | None:
    """The smallest difference of two means that counts as one; None with one run of each.

    It is more than chance, see :func:`by_seeds`, and at least 1 %. Shares of so many test ``images``, in percent, must
    instead differ by more than two standard errors of the difference between two such shares: seeds that agree do not
    make the test larger.
    """
    chance = by_seeds(one, other)
    if chance is None:
        return None
    least = _LEAST * max(abs(one.mean), abs(other.mean))
    return max(chance, least if images is None else of_images((one.mean + other.mean) / 2, images))


def by_seeds(one: Statistic, other: Statistic) -> float | None:
    """The smallest difference of two means that is more than chance; None with one run of each.

    By Student's t-test over the seeds, at 5 %. It takes one deviation for both: of two or three seeds, Welch's with one
    for each hardly tells anything apart, and a single run has none.
    """
    spread = [(each.n - 1, each.std) for each in (one, other) if each.std is not None]
    freedom = sum(count for count, _ in spread)
    if not freedom:
        return None
    variance = sum(count * std**2 for count, std in spread) / freedom
    return quantile(freedom) * math.sqrt(variance * (1 / one.n + 1 / other.n))


@lru_cache
def quantile(freedom: int) -> float:
    """Standard errors from which a difference is more than chance, with so many degrees of freedom (Student's t)."""
    from scipy import stats  # takes long to import

    return float(stats.t.ppf(1 - CHANCE / 2, freedom))


def of_images(percent: float, images: float | None) -> float:
    """Two standard errors of the difference between two shares, in percent, of so many test images."""
    share = min(max(percent / 100, 0.0), 1.0)
    return 200 * math.sqrt(2 * share * (1 - share) / images) if images else 0.0


def test_images(among: Iterable[Configuration]) -> float | None:
    """The fewest test images that any of the finished runs was evaluated on."""
    known = [images for trial in _finished(among) if (images := _TEST_IMAGES(trial)) is not None]
    return min(known, default=None)


def images(figure: Figure, among: Iterable[Configuration]) -> float | None:
    """How many test images limit how exact a share is, infinitely many where they set no limit; None for all else."""
    if figure in SHARES:
        return test_images(among) or math.inf
    return math.inf if figure is SPECIFICITY else None


def distinct(one: Statistic, other: Statistic, images: float | None = None) -> bool | None:
    """Whether the means of a figure differ, see :func:`visible`; None with one run of each: that is not tested."""
    least = visible(one, other, images)
    return None if least is None else abs(one.mean - other.mean) > least


def outliers(among: Iterable[Configuration]) -> list[Outlier]:
    """The finished runs whose accuracy is far below that of their configuration's other seeds."""
    found = []
    for one in among:
        known = [(trial, value) for trial in one.finished if (value := ACCURACY.measure(trial)) is not None]
        if not known:
            continue
        median = statistics.median(value for _, value in known)
        deviation = statistics.median(abs(value - median) for _, value in known)
        for trial, accuracy in known:
            below = median - accuracy
            if below >= _LEAST_POINTS and 0.6745 * below > _FAR * deviation:
                found.append(Outlier(trial, accuracy, below, len(known)))
    return found


def _finished(among: Iterable[Configuration]) -> list[Trial]:
    return [trial for one in among for trial in one.finished]
