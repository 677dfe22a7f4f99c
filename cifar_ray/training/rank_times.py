"""The times of the steps of every rank of a run, cut into stretches of the same steps on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PHASES = ("startup", "data", "training", "evaluation", "checkpoint")
"""Phases of a run's wall time; time in none of them is ``other``."""

PARTS = ("data", "forward", "backward", "communication", "optimizer")
"""Parts of a step, in their order; of the communication, what the backward pass does not hide."""

STRETCH_S, MOST_STRETCHES, LEAST_STRETCHES = 0.4, 20, 8
"""Seconds of a stretch at least, and how many a run is cut into, at most and to say something of it. A quota of a
container stops a process once in 0.1 s."""


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
    """

    ranks: tuple[RankTimes, ...]
    exchange: tuple[float, ...] = ()
    synchronous: bool = True
    incomparable: str = ""
