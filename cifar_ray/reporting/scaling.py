"""How much faster more workers are, and what one configuration may be held against."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cifar_ray.config import option, runfile
from cifar_ray.config.train import TrainConfig
from cifar_ray.reporting import aggregate
from cifar_ray.reporting.aggregate import RUN, Configuration, Measure, Statistic
from cifar_ray.reporting.names import STRATEGY
from cifar_ray.tracking.study import Study

_SPEED = aggregate.metric("images_per_s")
PLAIN_ALONE = ("gather_scatter", "send_recv", "all_reduce", "ddp", "local_sgd", "fsdp", "hogwild")
"""Strategies whose single worker trains plainly, and so the same; only theirs may stand for another strategy's."""

# They say how a strategy works.
_OPTIONS = {runfile.parameter(name) for name in option.names_for(TrainConfig, "strategy")} - {"clip_norm", "ema"}


class Pairs(NamedTuple):
    """A figure of two configurations, seed by seed, with the seeds that both have.

    Attributes:
        own: of the first, a value for every seed.
        base: of the second, likewise.
        run_ids: the runs, those of the first before those of the second.
    """

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


@dataclass(frozen=True)
class Ratio:
    """A configuration's speed against that of the smallest one like it.

    Attributes:
        reference: what it is compared with.
        pairs: images per second of both with the seeds that both have.
        speed_up: images per second as a multiple of the reference's. That of the reference itself has no deviation.
        efficiency: ``speed_up`` as a share of the multiple of workers, or of GPUs where a worker drives several.
    """

    reference: Configuration
    pairs: Pairs
    speed_up: Statistic
    efficiency: Statistic


def ratio(study: Study, configuration: Configuration, among: Sequence[Configuration]) -> Ratio | None:
    """Speed-up and scaling efficiency from the images per second in steady state.

    The reference is the configuration with the fewest workers (or GPUs) among those of the same model, data set,
    device and batch size (of the kind that the study holds), which differ in the topology alone, or are a single
    worker that trains plainly, whatever its strategy and that one's options, and have a seed in common. It is its own
    reference.

    Returns:
        None when either speed was not measured.
    """
    alike = [other for other in among if _comparable(study, configuration, other)]
    alike = [other for other in alike if pairs(configuration, other, _SPEED) is not None]
    if not alike:
        return None
    same = [other for other in alike if other.others == configuration.others]
    least = min(other.devices for other in alike)
    first = [other for other in same if other.devices == least] or [o for o in alike if o.devices == least]
    reference = min(first, key=lambda other: other.nodes)
    both = pairs(configuration, reference, _SPEED)
    if both is None or statistics.fmean(both.base) <= 0:
        return None
    speed_up, times = both.ratio, configuration.devices / reference.devices
    if reference is configuration:
        speed_up = replace(speed_up, std=None)
    std = None if speed_up.std is None else 100 * speed_up.std / times
    return Ratio(reference, both, speed_up, replace(speed_up, mean=100 * speed_up.mean / times, std=std))


def pairs(one: Configuration, base: Configuration, measure: Measure) -> Pairs | None:
    """A figure of two configurations with the seeds that both have it with; None without one.

    Seeds differ in their figures, and those of one round were trained in turn, so that a ratio of means over
    different seeds would be one of the seeds, too.
    """
    found = [by_seed(each, measure) for each in (one, base)]
    seeds = [seed for seed in found[0] if seed in found[1]]
    if not seeds:
        return None
    runs = (t.run_id for each in (one, base) for t in each.finished if t.seed in seeds and measure(t) is not None)
    own, theirs = ([statistics.fmean(values[seed]) for seed in seeds] for values in found)
    return Pairs(own, theirs, tuple(dict.fromkeys(runs)))


def by_seed(one: Configuration, measure: Measure) -> Mapping[int, Sequence[float]]:
    """A figure of the finished runs with every seed; sweeps together may have several with one."""
    found: dict[int, list[float]] = {}
    for trial in one.finished:
        if (value := measure(trial)) is not None:
            found.setdefault(trial.seed, []).append(value)
    return found


def _comparable(study: Study, one: Configuration, other: Configuration) -> bool:
    alike = aggregate.column(study, one) == aggregate.column(study, other)
    return alike and same_work(other, one) and may_be_base(other, one)


def single_worker(one: Configuration, among: Sequence[Configuration], measure: Measure) -> Configuration | None:
    """The single worker on one device that a configuration is compared with; None when none was measured.

    It does the same work, a global batch of the same size, and has a seed in common. Where its own strategy has none,
    as a pipeline's, it is the first of another one that may be its base.
    """
    alike = [
        other
        for other in among
        if other.devices == 1
        and may_be_base(other, one)
        and other.global_batch_size == one.global_batch_size
        and same_work(other, one)
        and pairs(one, other, measure) is not None
    ]
    alike.sort(key=lambda other: (other.strategy != one.strategy, other.others != one.others))
    return alike[0] if alike else None


def may_be_base(other: Configuration, one: Configuration) -> bool:
    """Whether ``one`` may be told as a multiple of ``other``, of the same strategy or a single worker like any."""
    if other.devices == 1 and other.strategy in PLAIN_ALONE:
        return True
    return other.strategy == one.strategy and _options(other) == _options(one)


def same_work(one: Configuration, other: Configuration) -> bool:
    """Whether they differ in the strategy, its options, the topology and the batch alone."""
    return _essentials(one) == _essentials(other)


def _options(one: Configuration) -> list[tuple[str, str]]:
    """How its strategy was told to work, but for the devices, which are counted."""
    return [pair for pair in one.others if pair[0] in _OPTIONS and pair[0] != "gpus_per_worker"]


def _essentials(one: Configuration) -> tuple[object, ...]:
    others = (pair for pair in one.others if pair[0] not in (STRATEGY, RUN, *_OPTIONS))
    return (one.model, one.dataset, one.device, *others)


def unit(among: Sequence[Configuration]) -> str:
    """What their number of devices counts: ``workers``, or ``GPUs`` where a worker drives several."""
    if all(one.devices == one.world_size for one in among):
        return "workers"
    return "GPUs" if all(one.device == "cuda" for one in among) else "devices"
