"""The times of the steps of every rank of a run, and which ranks take longer than the others.

A run is cut into stretches of the same steps on every rank. A rank is late only if it is so in most of them, so that a
pause, or another program for a moment, does not make it the slow one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PHASES = ("startup", "data", "training", "evaluation", "checkpoint")
"""Phases of a run's wall time; time in none of them is ``other``."""

PARTS = ("data", "forward", "backward", "communication", "optimizer")
"""Parts of a step, in their order; of the communication, what the backward pass does not hide."""

STRETCH_S, MOST_STRETCHES, LEAST_STRETCHES = 0.4, 20, 8
"""Seconds of a stretch at least, and how many a run is cut into, at most and to say something of it. A quota of a
container stops a process once in 0.1 s."""

LATE = 0.10
"""Share by which a slow rank takes longer than the others in the median stretch."""
_STILL_LATE, _MOST = 0.05, 0.75
"""It does so in this share of stretches, by the first share at least."""
_COSTS = 0.05
"""Share of a step that a slow rank costs at least."""


@dataclass(frozen=True)
class Spread:
    """Mean, median and 95th percentile over steps, in seconds."""

    mean: float
    median: float
    p95: float


@dataclass(frozen=True)
class RankTimes:
    """The steps of one rank.

    Attributes:
        rank: its rank.
        node: number of its node; that of rank 0 is 0.
        host: name of its machine.
        steps: how many were measured, in its last process; the first is not.
        cpu_wait: for how much of the time of its steps the thread that computes could run and waited for a CPU; 0 where
            that is not known, and on a GPU.
        iteration: of whole steps.
        parts: of the parts of a step that the strategy measures, such as ``backward``.
        stretches: mean seconds per step in each stretch of the run: of every part, and of the ``iteration``.
    """

    rank: int
    node: int
    host: str
    steps: int
    cpu_wait: float
    iteration: Spread
    parts: Mapping[str, Spread]
    stretches: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class StepTimes:
    """The steps of all ranks of a run.

    Attributes:
        ranks: in their order.
        exchange: mean seconds per step, in each stretch, of the communication of that rank which communicated least in
            the step: the last to come, which waits for no other; empty where ranks are not in step.
        synchronous: whether all ranks take each step together.
        incomparable: why times of computing cannot be compared between ranks, as a clause; empty where they can.
        strategy: its name; empty in records of earlier versions.
        micro_batches: that pass through the stages of a pipeline in a step, rank 0 the first; 0 without stages.
    """

    ranks: tuple[RankTimes, ...]
    exchange: tuple[float, ...] = ()
    synchronous: bool = True
    incomparable: str = ""
    strategy: str = ""
    micro_batches: int = 0


Measure = Callable[[RankTimes], list[float]]
"""Seconds per step of one rank in each stretch."""


def seconds_of(rank: RankTimes, *parts: str) -> list[float]:
    """Of these parts together."""
    columns = [rank.stretches[part] for part in parts if part in rank.stretches]
    return [sum(values) for values in zip(*columns)] or [0.0] * len(rank.stretches["iteration"])


def step(rank: RankTimes) -> list[float]:
    """Of a whole step."""
    return seconds_of(rank, "iteration")


def work(rank: RankTimes) -> list[float]:
    """Of computing."""
    return seconds_of(rank, "forward", "backward", "optimizer")


def data(rank: RankTimes) -> list[float]:
    """Of making the batch."""
    return seconds_of(rank, "data")


def communication(rank: RankTimes) -> list[float]:
    """Of the exchange, and of waiting for other ranks."""
    return seconds_of(rank, "communication")


def rest(rank: RankTimes) -> list[float]:
    """Of what is in no part."""
    return [max(whole - split, 0.0) for whole, split in zip(step(rank), seconds_of(rank, *PARTS))]


def typical(times: StepTimes, measure: Measure) -> float:
    """The median over stretches and ranks."""
    return statistics.median(value for rank in times.ranks for value in measure(rank))


def share_of(times: StepTimes, measure: Measure) -> float:
    """A time as a share of a step, as the median over stretches and ranks."""
    return statistics.median(part / whole for rank in times.ranks for part, whole in zip(measure(rank), step(rank)))


@dataclass(frozen=True)
class Late:
    """A rank that takes longer for something than the others.

    Attributes:
        rank: its times.
        its: seconds per step that it takes, in the median stretch.
        others: that the others take.
        share: what it takes longer, as a share of a step.
        steady: whether it is late in most of the run.
    """

    rank: RankTimes
    its: float
    others: float
    share: float
    steady: bool


def late_ranks(times: StepTimes, measure: Measure, relative: bool = True) -> list[Late]:
    """The ranks that take longer in the median stretch: by a share of the others' time, or of a step."""
    seconds = {rank.rank: measure(rank) for rank in times.ranks}
    late = []
    for rank in times.ranks if len(times.ranks) > 1 else ():
        its, steps = seconds[rank.rank], step(rank)
        others = [statistics.median(each) for each in zip(*(of for other, of in seconds.items() if other != rank.rank))]
        longer = [own - other for own, other in zip(its, others)]
        by = [more / base for more, base in zip(longer, others if relative else steps)]
        if statistics.median(by) >= LATE:
            lasts = sum(share >= _STILL_LATE for share in by) / len(by)
            share = statistics.median(more / whole for more, whole in zip(longer, steps))
            late.append(Late(rank, statistics.median(its), statistics.median(others), share, lasts >= _MOST))
    # A stage that computes longer has the others wait, though they may also wait for the first one's data.
    waits = times.synchronous and not times.micro_batches
    return [each for each in late if each.share >= _COSTS and (not waits or _others_wait(times, each))]


def _others_wait(times: StepTimes, late: Late) -> bool:
    """Whether the others communicate longer by at least half of what the rank is late."""
    waits = [statistics.median(communication(other)) for other in times.ranks if other is not late.rank]
    return statistics.median(waits) - statistics.median(communication(late.rank)) >= (late.its - late.others) / 2
