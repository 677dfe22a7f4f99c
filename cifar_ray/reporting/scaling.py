"""How much faster more workers are, and what one configuration may be held against."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate
from cifar_ray.reporting.aggregate import RUN, Configuration, Statistic
from cifar_ray.reporting.names import STRATEGY
from cifar_ray.tracking.study import Study

_SPEED = aggregate.metric("images_per_s")
PLAIN_ALONE = ("gather_scatter", "send_recv", "all_reduce", "ddp", "local_sgd", "fsdp", "hogwild")
"""Strategies whose single worker trains plainly, and so the same; only theirs may stand for another strategy's."""

# They say how a strategy works.
_OPTIONS = (
    *("accumulate", "bucket_cap_mb", "comm_hook", "sync_batchnorm", "sync_every", "micro_batches", "shards"),
    *("push_every", "servers", "max_staleness", "staleness_weighting", "gpus_per_worker"),
)


@dataclass(frozen=True)
class Ratio:
    """A configuration's speed against that of the smallest one like it.

    Attributes:
        reference: what it is compared with.
        speed_up: images per second as a multiple of the reference's, both as means over the seeds. Its standard
            deviation is that of the seeds' own ratios about it, where both have the same seeds, which were trained in
            turn: what slows a whole round is in neither. Else it is what those of the two means make of it; None
            without both, and of the reference itself.
        efficiency: ``speed_up`` as a share of the multiple of workers, or of GPUs where a worker drives several.
    """

    reference: Configuration
    speed_up: Statistic
    efficiency: Statistic


def ratio(study: Study, configuration: Configuration, among: Sequence[Configuration]) -> Ratio | None:
    """Speed-up and scaling efficiency from the images per second in steady state.

    The reference is the configuration with the fewest workers (or GPUs) among those of the same model, data set,
    device and batch size (of the kind that the study holds), which differ in the topology alone, or are a single
    worker that trains plainly, whatever its strategy and that one's options. It is its own reference.

    Returns:
        None when either speed was not measured.
    """
    speed = configuration.statistic(_SPEED)
    alike = [other for other in among if _comparable(study, configuration, other)]
    alike = [other for other in alike if other.statistic(_SPEED) is not None]
    if speed is None or not alike:
        return None
    same = [other for other in alike if other.others == configuration.others]
    least = min(other.devices for other in alike)
    first = [other for other in same if other.devices == least] or [o for o in alike if o.devices == least]
    reference = min(first, key=lambda other: other.nodes)
    base = reference.statistic(_SPEED)
    if base is None or base.mean <= 0:
        return None
    speed_up, times = speed.mean / base.mean, configuration.devices / reference.devices
    std = None if reference is configuration else _spread(configuration, reference, speed, base)
    ids = tuple(dict.fromkeys((*speed.run_ids, *base.run_ids)))
    return Ratio(
        reference,
        Statistic(speed_up, std, speed.n, ids),
        Statistic(100 * speed_up / times, None if std is None else 100 * std / times, speed.n, ids),
    )


def _spread(one: Configuration, reference: Configuration, speed: Statistic, base: Statistic) -> float | None:
    """The standard deviation of a ratio of means, to first order (Cochran, 1977, section 2.11)."""
    if speed.std is None or base.std is None:
        return None
    ratio, own, theirs = speed.mean / base.mean, _by_seed(one), _by_seed(reference)
    if own.keys() == theirs.keys() and len(own) == speed.n == base.n:
        return statistics.stdev(own[seed] - ratio * theirs[seed] for seed in own) / base.mean
    return math.hypot(speed.std, ratio * base.std) / base.mean


def _by_seed(one: Configuration) -> dict[int, float]:
    return {trial.seed: speed for trial in one.finished if (speed := _SPEED(trial)) is not None}


def _comparable(study: Study, one: Configuration, other: Configuration) -> bool:
    alike = aggregate.column(study, one) == aggregate.column(study, other)
    return alike and same_work(other, one) and may_be_base(other, one)


def single_worker(
    one: Configuration, among: Sequence[Configuration], measure: aggregate.Measure
) -> Configuration | None:
    """The single worker on one device that a configuration is compared with; None when none was measured.

    It does the same work, a global batch of the same size. Where its own strategy has none, as a pipeline's, it is
    the first of another one that may be its base.
    """
    alike = [
        other
        for other in among
        if other.devices == 1
        and may_be_base(other, one)
        and other.global_batch_size == one.global_batch_size
        and same_work(other, one)
        and other.statistic(measure) is not None
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
