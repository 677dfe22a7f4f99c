"""Studies of several strategies: what a strategy's row, line or bar is called, and what it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate, pace, peers
from cifar_ray.reporting.aggregate import RUN, Configuration
from cifar_ray.reporting.measures import Figure
from cifar_ray.tracking.study import Study, Trial

STRATEGY = "strategy"
PLAIN_ALONE = ("gather_scatter", "send_recv", "all_reduce", "ddp", "local_sgd", "fsdp", "hogwild")
"""Strategies whose single worker trains plainly, and so the same; only theirs may stand for another strategy's."""

# They say how a strategy works.
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
    return one.trials[0].strategy


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


def own_paces(among: Iterable[Configuration]) -> bool:
    """Whether one of them has ranks with a pace each."""
    return any(pace.own_paces(one.trials[0]) for one in among)


def by_size(among: Sequence[Configuration]) -> list[Configuration]:
    """From few devices to many, else in the order of the study."""
    return sorted(among, key=lambda one: (one.device, one.devices, one.nodes, one.topology))


def rivals(among: Iterable[Configuration]) -> bool:
    """Whether there is a best of them: those that finished have one global batch, device and number of devices."""
    return len({(one.global_batch_size, one.device, one.devices) for one in among if one.finished}) == 1


def better(figure: Figure, among: Sequence[Configuration]) -> str:
    """Which way a figure is better; empty where there is no best of them."""
    return peers.better(figure, among) if rivals(among) else ""


def where(one: Configuration) -> str:
    """Its topology in words, such as ``1x2 (2 CPU workers)``."""
    return dataclasses.replace(one, others=()).row


def unit(among: Sequence[Configuration]) -> str:
    """What their number of devices counts: ``workers``, or ``GPUs`` where a worker drives several."""
    if all(one.devices == one.world_size for one in among):
        return "workers"
    return "GPUs" if all(one.device == "cuda" for one in among) else "devices"


def counted(among: Sequence[Configuration]) -> tuple[str, Callable[[Configuration], int]]:
    """What grows with the topology, ``nodes`` where only their number does and else ``workers``, and its count.

    Where a worker drives several GPUs, they are what is counted.
    """
    if (word := unit(among)) != "workers":
        return word, lambda one: one.devices
    per_node = {one.world_size // one.nodes for one in among}
    if len(per_node) == 1 and len({one.nodes for one in among}) > 1:
        return "nodes", lambda one: one.nodes
    return "workers", lambda one: one.world_size


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
    alike.sort(key=lambda other: (strategy(other) != strategy(one), other.others != one.others))
    return alike[0] if alike else None


def may_be_base(other: Configuration, one: Configuration) -> bool:
    """Whether ``one`` may be told as a multiple of ``other``, of the same strategy or a single worker like any."""
    if other.devices == 1 and strategy(other) in PLAIN_ALONE:
        return True
    return strategy(other) == strategy(one) and _options(other) == _options(one)


def micro_batches(trial: Trial) -> str | None:
    """Into how many parts a pipeline cuts the batch; whatever else it was given, model_parallel does not cut it."""
    return "1" if trial.strategy == "model_parallel" else trial.params.get("micro_batches")


def same_work(one: Configuration, other: Configuration) -> bool:
    """Whether they differ in the strategy, its options, the topology and the batch alone."""
    return (one.model, one.dataset, one.device, _essentials(one)) == (
        other.model,
        other.dataset,
        other.device,
        _essentials(other),
    )


def _options(one: Configuration) -> list[tuple[str, str]]:
    """How its strategy was told to work, but for the devices, which are counted."""
    return [pair for pair in one.others if pair[0] in _OPTIONS and pair[0] != "gpus_per_worker"]


def _essentials(one: Configuration) -> list[tuple[str, str]]:
    return [pair for pair in one.others if pair[0] not in (STRATEGY, RUN, *_OPTIONS)]
