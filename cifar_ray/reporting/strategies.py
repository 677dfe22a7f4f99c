"""Studies of several strategies: what a strategy's row, line or bar is called, and what it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate
from cifar_ray.reporting.aggregate import RUN, Configuration
from cifar_ray.reporting.study import Study

STRATEGY = "strategy"
# They say how a strategy works; with one worker on one device they change nothing.
_OPTIONS = (
    *("bucket_cap_mb", "comm_hook", "sync_batchnorm", "sync_every", "micro_batches", "shards"),
    *("max_staleness", "staleness_weighting", "gpus_per_worker"),
)
_UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Names:
    """What configurations are called but for their topology, such as ``ddp`` or ``ddp, comm_hook=bf16``.

    Attributes:
        of: the name of one; with the batch where a study varies it.
        every: all names, in the order of the study.
    """

    of: Callable[[Configuration], str]
    every: tuple[str, ...]

    def among(self, those: Iterable[Configuration]) -> list[str]:
        """The names of some of them, in the order of the study."""
        found = set(map(self.of, those))
        return [name for name in self.every if name in found]


def strategy(one: Configuration) -> str:
    """Its strategy; empty for a run that did not live to record it."""
    return one.trials[0].params.get(STRATEGY, "")


def compared(among: Sequence[Configuration]) -> bool:
    """Whether they have more than one strategy."""
    return len({strategy(one) for one in among} - {""}) > 1


def names(study: Study, among: Sequence[Configuration]) -> Names:
    """How these configurations of a study are called."""
    several = len({aggregate.column(study, one) for one in among}) > 1

    def name(one: Configuration) -> str:
        others = [f"{key}={value}" for key, value in one.others if key != STRATEGY]
        size = aggregate.column(study, one)
        batch = f"global batch {size}" if study.hold == "global_batch" else f"batch {size} per worker"
        return ", ".join([strategy(one) or _UNKNOWN, *others, *([batch] if several else [])])

    return Names(name, tuple(dict.fromkeys(map(name, among))))


def by_size(among: Sequence[Configuration]) -> list[Configuration]:
    """From few workers to many, else in the order of the study."""
    return sorted(among, key=lambda one: (one.device, one.world_size, one.nodes, one.topology))


def where(one: Configuration) -> str:
    """Its topology in words, such as ``1x2 (2 CPU workers)``."""
    return dataclasses.replace(one, others=()).row


def counted(among: Sequence[Configuration]) -> tuple[str, Callable[[Configuration], int]]:
    """What grows with the topology, ``nodes`` where only their number does and else ``workers``, and its count."""
    per_node = {one.world_size // one.nodes for one in among}
    if len(per_node) == 1 and len({one.nodes for one in among}) > 1:
        return "nodes", lambda one: one.nodes
    return "workers", lambda one: one.world_size


def single_worker(
    one: Configuration, among: Sequence[Configuration], measure: aggregate.Measure
) -> Configuration | None:
    """The single worker on one device that a configuration is compared with; None when none was measured.

    It does the same work, a global batch of the same size. Where its own strategy has none, as a pipeline's, it is
    the first of another one: a single worker is the same under every strategy.
    """
    alike = [
        other
        for other in among
        if other.world_size == 1
        and devices(other) == 1
        and other.global_batch_size == one.global_batch_size
        and same_work(other, one)
        and other.statistic(measure) is not None
    ]
    alike.sort(key=lambda other: (strategy(other) != strategy(one), other.others != one.others))
    return alike[0] if alike else None


def devices(one: Configuration) -> int:
    """CPUs' workers or GPUs in all: a worker may drive several GPUs."""
    each = one.trials[0].params.get("gpus_per_worker", "1")
    return one.world_size * (int(each) if one.device == "cuda" and each.isdecimal() else 1)


def same_work(one: Configuration, other: Configuration) -> bool:
    """Whether they differ in the strategy, its options, the topology and the batch alone."""
    return (one.model, one.dataset, one.device, _essentials(one)) == (
        other.model,
        other.dataset,
        other.device,
        _essentials(other),
    )


def _essentials(one: Configuration) -> list[tuple[str, str]]:
    return [pair for pair in one.others if pair[0] not in (STRATEGY, RUN, *_OPTIONS)]
