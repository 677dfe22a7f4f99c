"""How much faster more workers are, and what one configuration may be compared with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from cifar_ray.reporting.figures import Figure, Statistic
from cifar_ray.reporting.frame import RUN, Configuration
from cifar_ray.reporting.names import STRATEGY

PLAIN_ALONE = ("gather_scatter", "send_recv", "all_reduce", "ddp", "local_sgd", "fsdp", "hogwild")
"""Strategies whose single worker trains plainly, and so the same; only theirs may stand for another strategy's."""

_OPTIONS = ("sync_batchnorm", "bucket_cap_mb", "accumulate")
"""How a strategy works, beside its own options; all else changes what is learned or how fast one worker is."""


class Pairs(NamedTuple):
    """A figure of a configuration and of its base with the seeds that both have, and the runs of both."""

    own: Sequence[float]
    base: Sequence[float]
    run_ids: tuple[str, ...]

    @property
    def ratio(self) -> Statistic:
        """The mean of the first as a multiple of the second's.

        The standard deviation is that of the seeds' own ratios about it, to first order (Cochran, 1977, section
        2.11): runs of one seed were trained in turn, and what slows a whole round is in neither.
        """
        base = statistics.fmean(self.base)
        mean = statistics.fmean(self.own) / base
        apart = [own - mean * other for own, other in zip(self.own, self.base)]
        std = statistics.stdev(apart) / base if len(apart) > 1 else None
        return Statistic(mean, std, len(apart), self.run_ids)


class Ratio(NamedTuple):
    """A configuration's speed against that of the smallest one like it, its reference.

    The efficiency is the speed-up as a share of the multiple of workers, or of GPUs where a worker drives several. That
    of the reference itself has no deviation.
    """

    reference: Configuration
    pairs: Pairs
    speed_up: Statistic
    efficiency: Statistic


def ratio(config: Configuration, among: Sequence[Configuration]) -> Ratio | None:
    """Speed-up and scaling efficiency from the throughput in steady state; None when these were not measured.

    The reference is the configuration with the fewest workers (or GPUs) among those of the same model, data set,
    device and batch size (of the kind that the study holds), which differ in the topology alone, or are a single
    worker that trains plainly, whatever its strategy and that one's options, and have a seed in common. It is its own
    reference.
    """
    throughput = config.runs.task.throughput
    reference = min(
        (other for other in among if other.column == config.column and is_base(other, config, throughput)),
        key=lambda other: (other.devices, other.others != config.others, other.nodes),
        default=None,
    )
    both = pairs(config, reference, throughput) if reference is not None else None
    if reference is None or both is None or statistics.fmean(both.base) <= 0:
        return None
    speed_up, times = both.ratio, config.devices / reference.devices
    if reference is config:
        speed_up = speed_up._replace(std=None)
    std = None if speed_up.std is None else 100 * speed_up.std / times
    return Ratio(reference, both, speed_up, speed_up._replace(mean=100 * speed_up.mean / times, std=std))


def pairs(config: Configuration, base: Configuration, figure: Figure) -> Pairs | None:
    """A figure of two configurations with the seeds that both have it with; None without one.

    Seeds differ in their figures, and those of one round were trained in turn, so that a ratio of means over
    different seeds would be one of the seeds, too.
    """
    own, theirs = config.by_seed(figure), base.by_seed(figure)
    seeds = [seed for seed in own if seed in theirs]
    if not seeds:
        return None
    measured = (trial for each in (config, base) for trial, _ in each.measured(figure) if trial.seed in seeds)
    run_ids = tuple(dict.fromkeys(trial.run_id for trial in measured))
    return Pairs([own[seed] for seed in seeds], [theirs[seed] for seed in seeds], run_ids)


def single_worker(config: Configuration, among: Sequence[Configuration], figure: Figure) -> Configuration | None:
    """The single worker on one device that a configuration is compared with; None when none was measured.

    It does the same work, a global batch of the same size, and has a seed in common. Where its own strategy has none,
    as a pipeline's, it is the first of another one that may be its base.
    """
    alike = [
        other
        for other in among
        if other.devices == 1 and other.global_batch_size == config.global_batch_size
        if is_base(other, config, figure)
    ]
    return min(
        alike, key=lambda other: (other.strategy != config.strategy, other.others != config.others), default=None
    )


def is_base(other: Configuration, config: Configuration, figure: Figure) -> bool:
    """Whether a figure of ``config`` may be told as a multiple of that of ``other``, with a seed that both have.

    They differ in the topology and the batch alone, or also in the strategy and its options where the other is a single
    worker that trains plainly.
    """
    plain = other.devices == 1 and other.strategy in PLAIN_ALONE
    return _kind(other, plain) == _kind(config, plain) and pairs(config, other, figure) is not None


def _kind(config: Configuration, plain: bool) -> list[object]:
    """What a configuration shares with its base, which may train ``plain``."""
    aside = (STRATEGY, RUN, "gpus_per_worker", *(_OPTIONS if plain else ()))
    others = [pair for pair in config.others if pair[0] not in aside]
    if plain:
        others = [pair for pair in others if not pair[0].startswith("strategy_options.")]
    return [config.model, config.dataset, config.device, "" if plain else config.strategy, *others]


def unit(among: Sequence[Configuration]) -> str:
    """What their number of devices counts: ``workers``, or ``GPUs`` where a worker drives several."""
    if all(config.devices == config.world_size for config in among):
        return "workers"
    return "GPUs" if all(config.device == "cuda" for config in among) else "devices"
