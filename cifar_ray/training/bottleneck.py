"""What bounds a run: a verdict over the times of its steps on every rank, with what to try.

Ranks that exchange gradients end a step together, so a rank that computes slowly does not have longer steps: the others
wait for it. What tells it apart is the time until its last gradient, which the strategies mark before they exchange.

A run is cut into stretches of the same steps on every rank. A rank is late only if it is so in most of them, so that a
pause, or another program for a moment, does not make it the slow one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["slow rank", "slow data", "slow link", "overhead", "balanced", "not enough evidence"]

PARTS = ("data", "forward", "backward", "communication", "optimizer")
"""Parts of a step, in their order; of the communication, what the backward pass does not hide."""

_COMPUTING = ("forward", "backward", "optimizer")
STRETCH_S, MOST_STRETCHES, LEAST_STRETCHES = 0.4, 20, 8
"""Seconds of a stretch at least, and how many a run is cut into, at most and to say something of it. A quota of a
container stops a process once in 0.1 s."""

_LATE, _STILL_LATE, _MOST = 0.10, 0.05, 0.75
"""A slow rank takes longer than the others by the first share in the median stretch, and by the second in most: the
third is the share of stretches."""
_COSTS = 0.05
"""Share of a step that a slow rank costs at least."""
_LARGE = 0.15
"""Share of a step from which data, the exchange, or what is in no part bounds it."""
_CROWDED = 0.10
"""Share of its time for which a worker on a shared CPU waits for it: it delays an exchange as a slow link does."""

_EXCHANGING_LESS = {
    "ddp": "--accumulate, --ddp.comm-hook bf16, or --strategy local_sgd",
    "local_sgd": "a larger --local-sgd.sync-every",
}
_ANYWHERE = "--accumulate, --strategy ddp with --ddp.comm-hook bf16, or --strategy local_sgd"
"""What makes an exchange smaller or rarer, by strategy, and with the others."""


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
    """

    ranks: tuple[RankTimes, ...]
    exchange: tuple[float, ...] = ()
    synchronous: bool = True
    incomparable: str = ""
    strategy: str = ""


@dataclass(frozen=True)
class Verdict:
    """What bounds a run.

    Attributes:
        kind: in two or three words.
        sentence: with the numbers.
        advice: what to try.
        share: of the time of the steps that it costs, 0 to 1; None where nothing is to be gained or known.
        ranks: the slow ones.
    """

    kind: Kind
    sentence: str
    advice: tuple[str, ...] = ()
    share: float | None = None
    ranks: tuple[int, ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether something stands in the way that can be named."""
        return self.share is not None


def explain(times: StepTimes) -> Verdict:
    """What bounds a run with these times; of several causes, the one that costs most."""
    problem = _problem(times)
    if problem:
        return Verdict("not enough evidence", problem)
    every = (_crowded, _slow_ranks, _slow_data, _slow_link, _overhead)
    causes = [cause for find in every if (cause := find(times))]
    if causes:
        return max(causes, key=lambda cause: cause.share or 0.0)
    if not times.synchronous and (waits := _share(times, _communication)) >= _LARGE:
        return Verdict(
            "not enough evidence",
            f"{_percent(waits)} of a step passes in its exchange, which has the server, the link and any wait in it",
        )
    if times.exchange and (share := _exchanging(times)) >= _LARGE:
        return Verdict(
            "not enough evidence",
            f"the exchange takes {_percent(share)} of a step, but some workers share their CPUs with other programs",
        )
    if unsteady := next((late.rank for late in _late(times, _work) if late.lasts < _MOST), None):
        return Verdict(
            "not enough evidence",
            f"{_name(unsteady)} computes longer than the others, but only in a part of the run",
        )
    computing = _share(times, _work)
    by_rank = _waits(times)
    if by_rank and (more := max(by_rank) - min(by_rank)) >= _LATE:
        return Verdict(
            "not enough evidence",
            f"others wait for {_name(times.ranks[by_rank.index(min(by_rank))])} by {_percent(more)} of a step, which "
            "does not show in its computing or its data",
        )
    among = "" if len(times.ranks) == 1 else f", and no rank waits for another for {_percent(_LATE)} of it"
    return Verdict(
        "balanced",
        f"computing takes {_percent(computing)} of a step{among}",
        ("more workers, --precision bf16 or --compile would make a step shorter",),
    )


def _problem(times: StepTimes) -> str:
    """Why nothing can be said, in words; empty where something can."""
    counts = {rank.rank: rank.steps for rank in times.ranks}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"rank {rank}: {steps:,}" for rank, steps in counts.items())
        return f"the ranks recorded different numbers of steps ({listed})"
    if not times.ranks or not all("forward" in rank.parts for rank in times.ranks if rank.steps):
        return "the parts of the steps were not recorded"
    stretches = {len(values) for rank in times.ranks for values in rank.stretches.values()}
    if max(stretches) < LEAST_STRETCHES:
        first = times.ranks[0]
        return (
            f"{first.steps:,} measured steps of {first.steps * first.iteration.mean:.1f} s together are too few: "
            f"{LEAST_STRETCHES} steps and {LEAST_STRETCHES * STRETCH_S:.1f} s are needed"
        )
    return times.incomparable if len(times.ranks) > 1 else ""


Measure = Callable[[RankTimes], list[float]]
"""Seconds per step of one rank in each stretch."""


def _of(rank: RankTimes, *parts: str) -> list[float]:
    columns = [rank.stretches[part] for part in parts if part in rank.stretches]
    return [sum(values) for values in zip(*columns)] or [0.0] * len(rank.stretches["iteration"])


def _work(rank: RankTimes) -> list[float]:
    return _of(rank, *_COMPUTING)


def _data(rank: RankTimes) -> list[float]:
    return _of(rank, "data")


def _communication(rank: RankTimes) -> list[float]:
    return _of(rank, "communication")


def _rest(rank: RankTimes) -> list[float]:
    """What is in no part."""
    parts = _of(rank, *_COMPUTING, "data", "communication")
    return [max(whole - split, 0.0) for whole, split in zip(_of(rank, "iteration"), parts)]


def _share(times: StepTimes, measure: Measure) -> float:
    """A time as a share of a step, as the median over stretches and ranks."""
    return statistics.median(
        part / whole for rank in times.ranks for part, whole in zip(measure(rank), _of(rank, "iteration"))
    )


@dataclass(frozen=True)
class _Late:
    """A rank that takes longer for something than the others' median.

    ``share`` is of a step, in the median stretch, and ``lasts`` the share of stretches in which it does.
    """

    rank: RankTimes
    its: float
    others: float
    share: float
    lasts: float


def _late(times: StepTimes, measure: Measure, relative: bool = True) -> list[_Late]:
    """The ranks that take longer in the median stretch: by a share of the others' time, or of a step."""
    seconds = {rank.rank: measure(rank) for rank in times.ranks}
    late = []
    for rank in times.ranks if len(times.ranks) > 1 else ():
        its, steps = seconds[rank.rank], _of(rank, "iteration")
        others = [statistics.median(each) for each in zip(*(of for other, of in seconds.items() if other != rank.rank))]
        longer = [own - other for own, other in zip(its, others)]
        by = [more / base for more, base in zip(longer, others if relative else steps)]
        if statistics.median(by) >= _LATE:
            lasts = sum(share >= _STILL_LATE for share in by) / len(by)
            share = statistics.median(more / step for more, step in zip(longer, steps))
            late.append(_Late(rank, statistics.median(its), statistics.median(others), share, lasts))
    return [each for each in late if each.share >= _COSTS and (not times.synchronous or _others_wait(times, each))]


def _others_wait(times: StepTimes, late: _Late) -> bool:
    """Whether the others communicate longer by at least half of what the rank is late."""
    waits = [statistics.median(_communication(other)) for other in times.ranks if other is not late.rank]
    return statistics.median(waits) - statistics.median(_communication(late.rank)) >= (late.its - late.others) / 2


def _slow_ranks(times: StepTimes) -> Verdict | None:
    return _named(
        "slow rank",
        times,
        [late for late in _late(times, _work) if late.lasts >= _MOST],
        "for forward, backward and the optimizer",
        "look at what else runs on {where} (top, nvidia-smi), at its clock, and at the CPUs that the rank may use",
        "give every rank CPUs of its own (fewer workers on a node), or leave a node that stays slow out",
    )


def _slow_data(times: StepTimes) -> Verdict | None:
    late = [late for late in _late(times, _data, relative=False) if late.lasts >= _MOST]
    if late:
        return _named(
            "slow data",
            times,
            late,
            "to make its part of a batch",
            "look at the disk, the memory and the CPUs of {where}",
            "a data set in memory (without --stream) needs no disk",
        )
    share = _share(times, _data)
    if share < _LARGE:
        return None
    data, step = (_typical(times, measure) for measure in (_data, lambda rank: _of(rank, "iteration")))
    return Verdict(
        "slow data",
        f"making the batches takes {_ms(data)} of a step of {_ms(step)}: {_percent(share)} of the training",
        ("a cheaper --augment, or none", "more CPUs for a worker (--cpus-per-worker)"),
        share,
    )


def _named(kind: Kind, times: StepTimes, late: Sequence[_Late], what: str, look: str, otherwise: str) -> Verdict | None:
    """The verdict that names slow ranks; None without any."""
    if not late:
        return None
    slowest = max(late, key=lambda each: each.share)
    more = slowest.its - slowest.others
    wait = (
        f"they wait {_ms(more)} in every step"
        if times.synchronous
        else f"every epoch ends when it does, {_ms(more)} later for each step"
    )
    also = "" if len(late) == 1 else f"; so {'do' if len(late) > 2 else 'does'} {_listed(late, slowest)}"
    rank = slowest.rank
    usual = statistics.median(other.cpu_wait for other in times.ranks if other is not rank)
    crowded = f"; it waits for a CPU for {_percent(rank.cpu_wait)} of the time" * (rank.cpu_wait - usual >= _CROWDED)
    return Verdict(
        kind,
        f"{_name(slowest.rank)} takes {_ms(slowest.its)} {what}, the others {_ms(slowest.others)}: "
        f"{wait}, {_percent(slowest.share)} of the training{also}{crowded}",
        tuple(advice.format(where=f"node{slowest.rank.node}") for advice in (look, otherwise)),
        slowest.share,
        tuple(each.rank.rank for each in late),
    )


def _slow_link(times: StepTimes) -> Verdict | None:
    if not times.exchange or max(rank.cpu_wait for rank in times.ranks) >= _CROWDED:
        return None
    steps, share = _of(times.ranks[0], "iteration"), _exchanging(times)
    if share < _LARGE:
        return None
    between = len({rank.node for rank in times.ranks}) > 1
    return Verdict(
        "slow link" if between else "overhead",
        f"the exchange {'between the nodes' if between else 'within the node'} takes "
        f"{_ms(statistics.median(times.exchange))} of a step of {_ms(statistics.median(steps))} once the last rank has "
        f"come: {_percent(share)} of the training",
        (
            f"exchange less: {_EXCHANGING_LESS.get(times.strategy, _ANYWHERE)}",
            "measure the network (iperf3), and see which interface is used (placement.json)"
            if between
            else "fewer workers with more CPUs each",
        ),
        share,
    )


def _exchanging(times: StepTimes) -> float:
    """The exchange as a share of a step."""
    steps = _of(times.ranks[0], "iteration")
    return statistics.median(own / step for own, step in zip(times.exchange, steps))


def _waits(times: StepTimes) -> list[float]:
    """For how much of a step each rank waits for others; empty where ranks are not in step."""
    steps = _of(times.ranks[0], "iteration")
    return [
        statistics.median((wait - own) / step for wait, own, step in zip(_communication(rank), times.exchange, steps))
        for rank in times.ranks
        if times.exchange
    ]


def _crowded(times: StepTimes) -> Verdict | None:
    """The verdict where every rank waits for CPUs: what takes long by less than that does not do so by itself."""
    share = min(min(rank.cpu_wait for rank in times.ranks), 1.0)
    if share < _CROWDED:
        return None
    who = "every rank waits" if len(times.ranks) > 1 else "the worker waits"
    return Verdict(
        "overhead",
        f"{who} for a CPU for {_percent(share)} of the training or more: more runs there than there are CPUs for",
        ("fewer workers on a node", "nothing else on the nodes (top)"),
        share,
    )


def _overhead(times: StepTimes) -> Verdict | None:
    share = _share(times, _rest)
    if share >= _LARGE:
        return Verdict(
            "overhead",
            f"{_ms(_typical(times, _rest))} of a step of {_ms(_typical(times, lambda rank: _of(rank, 'iteration')))} "
            f"are in no part of it, such as the record of its loss: {_percent(share)} of the training",
            ("a larger --log-every", "a larger global batch, which has fewer steps"),
            share,
        )
    waits = _waits(times)
    share = statistics.fmean(waits) if waits else 0.0
    if share < _LARGE or min(waits) < share / 2:  # that one waits for nobody, so the others wait for it
        return None
    return Verdict(
        "overhead",
        f"the ranks wait {_percent(share)} of the training for whichever is the last, which is another one each time",
        ("not more workers on a node than it has CPUs", "nothing else on the nodes"),
        share,
    )


def _typical(times: StepTimes, measure: Measure) -> float:
    return statistics.median(value for rank in times.ranks for value in measure(rank))


def _name(rank: RankTimes) -> str:
    host = f" ({rank.host})" if rank.host else ""
    return f"rank {rank.rank} on node{rank.node}{host}"


def _listed(late: Sequence[_Late], but: _Late) -> str:
    numbers = [str(each.rank.rank) for each in late if each is not but]
    return f"rank{'s' * (len(numbers) > 1)} {' and '.join(filter(None, (', '.join(numbers[:-1]), numbers[-1])))}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(seconds: float) -> str:
    """``92 ms``, ``8.3 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.{0 if milliseconds >= 10 else 1}f} ms"
