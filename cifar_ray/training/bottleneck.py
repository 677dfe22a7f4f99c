"""What bounds a run: a verdict over the times of its steps on every rank, with what to try.

Ranks that exchange gradients end a step together, so a rank that computes slowly does not have longer steps: the others
wait for it. What tells it apart is the time until its last gradient, which the strategies mark before they exchange.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cifar_ray.training import pipeline_bottleneck
from cifar_ray.training.rank_times import (
    LATE,
    LEAST_STRETCHES,
    STRETCH_S,
    Late,
    StepTimes,
    communication,
    data,
    late_ranks,
    share_of,
    step,
    typical,
    work,
)
from cifar_ray.training.verdict import (
    LARGE,
    LESS_DATA,
    STOP_OTHERS,
    Kind,
    Verdict,
    also,
    crowded,
    ms,
    name,
    percent,
    slow_exchange,
    unaccounted,
    waiting_for_cpu,
)

_EXCHANGING_LESS = {
    "ddp": "--accumulate, --strategy-options.comm-hook bf16, or --strategy local_sgd",
    "local_sgd": "a larger --strategy-options.sync-every",
}
_ANYWHERE = "--accumulate, --strategy ddp with --strategy-options.comm-hook bf16, or --strategy local_sgd"
"""What makes an exchange smaller or rarer, by strategy, and with the others."""


def explain(times: StepTimes) -> Verdict:
    """What bounds a run with these times; of several causes, the one that costs most."""
    problem = _problem(times)
    if problem:
        return Verdict("not enough evidence", problem)
    if times.micro_batches:
        return pipeline_bottleneck.explain(times)
    every = (crowded, _slow_ranks, _slow_data, _slow_link, unaccounted, _in_turn)
    causes = [cause for find in every if (cause := find(times))]
    if causes:
        return max(causes, key=lambda cause: cause.share or 0.0)
    if not times.synchronous and (waits := share_of(times, communication)) >= LARGE:
        return Verdict(
            "not enough evidence",
            f"{percent(waits)} of a step passes in its exchange, which has the server, the link and any wait in it",
        )
    if times.exchange and (share := _exchanging(times)) >= LARGE:
        return Verdict(
            "not enough evidence",
            f"the exchange takes {percent(share)} of a step, but some workers share their CPUs with other programs",
        )
    if unsteady := next((late.rank for late in late_ranks(times, work) if not late.steady), None):
        return Verdict(
            "not enough evidence",
            f"{name(unsteady)} computes longer than the others, but only in a part of the run",
        )
    computing = share_of(times, work)
    by_rank = _waits(times)
    if by_rank and (more := max(by_rank) - min(by_rank)) >= LATE:
        return Verdict(
            "not enough evidence",
            f"others wait for {name(times.ranks[by_rank.index(min(by_rank))])} by {percent(more)} of a step, which "
            "does not show in its computing or its data",
        )
    among = "" if len(times.ranks) == 1 else f", and no rank waits for another for {percent(LATE)} of it"
    return Verdict(
        "balanced",
        f"computing takes {percent(computing)} of a step{among}",
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
    if max(stretches, default=0) < LEAST_STRETCHES:
        first = times.ranks[0]
        return (
            f"{first.steps:,} measured steps of {first.steps * first.iteration.mean:.1f} s together are too few: "
            f"{LEAST_STRETCHES} steps and {LEAST_STRETCHES * STRETCH_S:.1f} s are needed"
        )
    return times.incomparable if len(times.ranks) > 1 else ""


def _slow_ranks(times: StepTimes) -> Verdict | None:
    return _named(
        "slow rank",
        times,
        [late for late in late_ranks(times, work) if late.steady],
        "for forward, backward and the optimizer",
        "look at what else runs on {where} (top, nvidia-smi), at its clock, and at the CPUs that the rank may use",
        "give every rank CPUs of its own (fewer workers on a node), or leave a node that stays slow out",
    )


def _slow_data(times: StepTimes) -> Verdict | None:
    late = [late for late in late_ranks(times, data, relative=False) if late.steady]
    if late:
        return _named(
            "slow data",
            times,
            late,
            "to make its part of a batch",
            "look at the disk, the memory and the CPUs of {where}",
            "a data set in memory (without --stream) needs no disk",
        )
    share = share_of(times, data)
    if share < LARGE:
        return None
    return Verdict(
        "slow data",
        f"making the batches takes {ms(typical(times, data))} of a step of {ms(typical(times, step))}: "
        f"{percent(share)} of the training",
        LESS_DATA,
        share,
    )


def _named(kind: Kind, times: StepTimes, late: Sequence[Late], what: str, look: str, otherwise: str) -> Verdict | None:
    """The verdict that names slow ranks; None without any."""
    if not late:
        return None
    slowest = max(late, key=lambda each: each.share)
    more = slowest.its - slowest.others
    wait = (
        f"they wait {ms(more)} in every step"
        if times.synchronous
        else f"every epoch ends when it does, {ms(more)} later for each step"
    )
    rank = slowest.rank
    return Verdict(
        kind,
        f"{name(rank)} takes {ms(slowest.its)} {what}, the others {ms(slowest.others)}: "
        f"{wait}, {percent(slowest.share)} of the training{also(late, slowest)}{waiting_for_cpu(times, rank)}",
        tuple(advice.format(where=f"node{rank.node}") for advice in (look, otherwise)),
        slowest.share,
        tuple(each.rank.rank for each in late),
    )


def _slow_link(times: StepTimes) -> Verdict | None:
    if not times.exchange:
        return None
    share = _exchanging(times)
    return slow_exchange(
        times,
        f"the exchange {{where}} takes {ms(statistics.median(times.exchange))} of a step of "
        f"{ms(statistics.median(step(times.ranks[0])))} once the last rank has come: {percent(share)} of the training",
        f"exchange less: {_EXCHANGING_LESS.get(times.strategy, _ANYWHERE)}",
        share,
    )


def _exchanging(times: StepTimes) -> float:
    """The exchange as a share of a step."""
    steps = step(times.ranks[0])
    return statistics.median(own / whole for own, whole in zip(times.exchange, steps))


def _waits(times: StepTimes) -> list[float]:
    """For how much of a step each rank waits for others; empty where ranks are not in step."""
    steps = step(times.ranks[0])
    return [
        statistics.median((wait - own) / whole for wait, own, whole in zip(communication(rank), times.exchange, steps))
        for rank in times.ranks
        if times.exchange
    ]


def _in_turn(times: StepTimes) -> Verdict | None:
    """The verdict where ranks wait for each other by turns."""
    waits = _waits(times)
    share = statistics.fmean(waits) if waits else 0.0
    if share < LARGE or min(waits) < share / 2:  # that one waits for nobody, so the others wait for it
        return None
    return Verdict(
        "overhead",
        f"the ranks wait for the slowest for {percent(share)} of training, and each time another one is the slowest",
        ("run at most as many workers on a node as it has CPUs", STOP_OTHERS),
        share,
    )
