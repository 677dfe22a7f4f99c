"""Which runs can be compared: those of equal work; and which differences are more than chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cifar_ray.reporting.figures import Figure, Statistic
from cifar_ray.reporting.frame import Configuration

_SAME = 0.02
"""Share by which equal work may differ: an epoch leaves out the images that do not fill a global batch."""

CHANCE = 0.05
"""Probability of a difference by chance below which two means are called distinct."""

_LEAST = 0.01
"""Share of the larger mean from which a difference counts as one, besides chance; that of shares of the test images
has the size of the test set."""


def unequal_work(among: Sequence[Configuration], figure: Figure) -> str:
    """How the work of the finished runs that have a figure differs, as a sentence begins; empty where it is equal.

    Where one of several has not recorded its images, that is not known, and they are not compared by their seconds.
    """
    images = [images for config in among for images in config.trained(figure)]
    unit = among[0].runs.task.spec.unit if among else ""
    if any(map(math.isnan, images)):
        return f"not every run has recorded how many {unit} it trained on" if len(images) > 1 else ""
    if not images or max(images) <= (1 + _SAME) * min(images):
        return ""
    return f"the runs trained on different numbers of {unit} ({min(images):,.0f} to {max(images):,.0f})"


def better(figure: Figure, among: Sequence[Configuration]) -> str:
    """Which way a figure of these configurations is better; empty where they cannot be compared by it."""
    finished = [config for config in among if config.finished]
    alike = {
        "step": lambda: len({(config.global_batch_size, config.device) for config in finished}) < 2,
        "device": lambda: len({config.device for config in finished}) < 2,
        "work": lambda: not unequal_work(finished, figure),
    }
    return figure.better if figure.alike == "" or alike[figure.alike]() else ""


def visible(first: Statistic, other: Statistic, images: float | None = None) -> float | None:
    """The smallest difference of two means that counts; None with one run of each.

    It is more than chance, see :func:`by_seeds`, and at least 1 %. Shares of so many test ``images``, in percent, must
    instead differ by more than two standard errors of the difference between two such shares: seeds that agree do not
    make the test larger.
    """
    chance = by_seeds(first, other)
    if chance is None:
        return None
    least = _LEAST * max(abs(first.mean), abs(other.mean))
    return max(chance, least if images is None else of_images((first.mean + other.mean) / 2, images))


def by_seeds(first: Statistic, other: Statistic) -> float | None:
    """The smallest difference of two means that is more than chance; None with one run of each.

    By Student's t-test over the seeds, at 5 %. It takes one deviation for both: of two or three seeds, Welch's with one
    for each hardly tells anything apart, and a single run has none.
    """
    spread = [(each.n - 1, each.std) for each in (first, other) if each.std is not None]
    freedom = sum(count for count, _ in spread)
    if not freedom:
        return None
    variance = sum(count * std**2 for count, std in spread) / freedom
    return quantile(freedom) * math.sqrt(variance * (1 / first.n + 1 / other.n))


@lru_cache
def quantile(freedom: int) -> float:
    """Standard errors from which a difference is more than chance, with so many degrees of freedom (Student's t)."""
    from scipy import stats  # takes long to import

    return float(stats.t.ppf(1 - CHANCE / 2, freedom))


def of_images(percent: float, images: float | None) -> float:
    """Two standard errors of the difference between two shares, in percent, of so many test images."""
    share = min(max(percent / 100, 0.0), 1.0)
    return 200 * math.sqrt(2 * share * (1 - share) / images) if images else 0.0


def images(figure: Figure, among: Iterable[Configuration]) -> float | None:
    """How many images limit how exact a share is, infinitely many where they set no limit; None for all else.

    They are the fewest of the test, or of validation if the share is of it, that any finished run was evaluated on.
    """
    if figure.of is None or not figure.of.percent:
        return None
    known = [trial.metrics.get(trial.task.counted_on(figure.subset)) for config in among for trial in config.finished]
    return min(filter(None, known), default=math.inf) if figure.of.binomial else math.inf


def distinct(first: Statistic, other: Statistic, images: float | None = None) -> bool | None:
    """Whether the means of a figure differ, see :func:`visible`; None with one run of each: that is not tested."""
    least = visible(first, other, images)
    return None if least is None else abs(first.mean - other.mean) > least


def of_shares(first: float, second: float, images: int) -> float:
    """How likely two equal shares, each of so many images, come out as far apart as these, either way.

    By Fisher's exact test. Of several shares, the highest may so be tested against the second, and needs no correction
    for their number to be called the highest: Hung and Fithian, "Rank verification for exponential families", Annals of
    Statistics 47 (2019). Images that both share make the test cautious.
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
