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
    """A configuration's speed against that of its reference.

    The efficiency is the speed-up as a share of the multiple of workers, or of GPUs where a worker drives several. That
    of the reference itself has no deviation.
    """

    reference: Configuration
    pairs: Pairs
    speed_up: Statistic
    efficiency: Statistic


def ratio(config: Configuration, among: Sequence[Configuration]) -> Ratio | None:
    """Speed-up and scaling efficiency from the throughput in steady state; None when these were not measured.

    The reference has the batch size (of the kind that the study holds), and may be the configuration itself.
    """
    throughput = config.runs.task.throughput
    base = reference(config, [other for other in among if other.column == config.column], throughput)
    both = pairs(config, base, throughput) if base is not None else None
    if base is None or both is None or statistics.fmean(both.base) <= 0:
        return None
    speed_up, share = both.ratio, 100 * base.devices / config.devices
    std = None if base is config else speed_up.std
    efficiency = speed_up._replace(mean=share * speed_up.mean, std=None if std is None else share * std)
    return Ratio(base, both, speed_up._replace(std=std), efficiency)


def pairs(config: Configuration, base: Configuration, figure: Figure) -> Pairs | None:
    """A figure of two configurations with the seeds that both have it with; None without one.

    Seeds differ in their figures, and those of one round were trained in turn, so that a ratio of means over
    different seeds would be one of the seeds, too.
    """
    own, theirs = config.by_seed(figure), base.by_seed(figure)
    seeds = [seed for seed in own if seed in theirs]
    measured = (trial for each in (config, base) for trial, _ in each.measured(figure) if trial.seed in seeds)
    run_ids = tuple(dict.fromkeys(trial.run_id for trial in measured))
    return Pairs([own[seed] for seed in seeds], [theirs[seed] for seed in seeds], run_ids) if seeds else None


def single_worker(config: Configuration, among: Sequence[Configuration], figure: Figure) -> Configuration | None:
    """The single worker with the same global batch that a configuration is compared with; None without one."""
    size = config.global_batch_size
    alone = [other for other in among if other.devices == 1 and other.global_batch_size == size]
    return reference(config, alone, figure)


def reference(config: Configuration, among: Sequence[Configuration], figure: Figure) -> Configuration | None:
    """The one with the fewest workers (or GPUs) among those that may be the base, and of these the one most like it."""

    def unlike(other: Configuration) -> tuple[object, ...]:
        return other.devices, other.strategy != config.strategy, other.others != config.others, other.nodes

    return min((other for other in among if is_base(other, config, figure)), key=unlike, default=None)


def is_base(other: Configuration, config: Configuration, figure: Figure) -> bool:
    """Whether a figure of ``config`` may be told as a multiple of that of ``other``, with a seed that both have.

    They differ in the topology and the batch alone, or also in the strategy and its options where the other is a single
    worker that trains plainly.
    """
    plain = other.devices == 1 and other.strategy in PLAIN_ALONE
    return _kind(other, plain) == _kind(config, plain) and pairs(config, other, figure) is not None


def _kind(config: Configuration, plain: bool) -> list[object]:
    """What a configuration shares with its base, which may train ``plain``."""
    aside = {STRATEGY, RUN, "gpus_per_worker", *(_OPTIONS if plain else ())}
    others = [pair for pair in config.others if pair[0] not in aside]
    others = [pair for pair in others if not (plain and pair[0].startswith("strategy_options."))]
    return [config.model, config.dataset, config.device, plain or config.strategy, *others]


def unit(among: Sequence[Configuration]) -> str:
    """What their number of devices counts: ``workers``, or ``GPUs`` where a worker drives several."""
    if all(config.devices == config.world_size for config in among):
        return "workers"
    return "GPUs" if all(config.device == "cuda" for config in among) else "devices"
