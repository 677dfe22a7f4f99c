"""How much faster more workers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate, strategies
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.tracking.study import Study

_SPEED = aggregate.metric("images_per_s")


@dataclass(frozen=True)
class Ratio:
    """A configuration's speed against that of the smallest one like it.

    Attributes:
        reference: what it is compared with.
        speed_up: images per second as a multiple of the reference's, both as means over the seeds.
        std: what the sample standard deviations of the two means make of it; None without both, and where the
            reference is the configuration itself.
        efficiency: ``speed_up`` as a share of the multiple of workers, or of GPUs where a worker drives several.
        efficiency_std: ``std`` as such a share.
        run_ids: the runs that both means come from.
    """

    reference: Configuration
    speed_up: float
    std: float | None
    efficiency: float
    efficiency_std: float | None
    run_ids: tuple[str, ...]

    @property
    def spread(self) -> str:
        """What a reader must know of the standard deviation; empty without one."""
        return "" if self.std is None else "a ratio of two means, ± what their standard deviations come to"


def ratio(study: Study, configuration: Configuration, among: Sequence[Configuration]) -> Ratio | None:
    """Speed-up and scaling efficiency from the images per second in steady state.

    The reference is the configuration with the fewest workers (or GPUs) among those of the same model, data set,
    device and batch size (of the kind that the study holds), which differ in the topology alone, or are a single
    worker of another strategy that trains plainly. It is its own reference.

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
    std = None
    if speed.std is not None and base.std is not None and reference is not configuration:
        std = math.hypot(speed.std / base.mean, speed_up * base.std / base.mean)
    return Ratio(
        reference=reference,
        speed_up=speed_up,
        std=std,
        efficiency=speed_up / times,
        efficiency_std=None if std is None else std / times,
        run_ids=tuple(dict.fromkeys((*speed.run_ids, *base.run_ids))),
    )


def _comparable(study: Study, one: Configuration, other: Configuration) -> bool:
    alike = one.kind == other.kind and aggregate.column(study, one) == aggregate.column(study, other)
    return alike and strategies.may_be_base(other, one)
