"""What bounds a pipeline, whose ranks compute one stage of the model each.

Stages that compute for b_1 ... b_S seconds of a step of M micro-batches, and exchange messages in no time, take
(b_1 + ... + b_S + (M - 1) max b) / M seconds from the first pass to the last: a flow shop of equal jobs. ``gpipe``
takes exactly that long where one stage has the longest forward and backward passes, ``one_f_one_b`` at most. Of it,
max b is the longest stage's computing, and the rest the bubble; with even stages this is (S - 1) / (M + S - 1) of the
time (GPipe, section 2.3). What a step takes longer, it waits for messages.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cifar_ray.training.rank_times import (
    RankTimes,
    StepTimes,
    data,
    late_ranks,
    rest,
    seconds_of,
    share_of,
    step,
    typical,
)
from cifar_ray.training.verdict import (
    LARGE,
    LESS_DATA,
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


def explain(times: StepTimes) -> Verdict:
    """What bounds a pipeline with these times; of several causes, the one that costs most."""
    every = (crowded, _long_stage, _slow_data, _slow_link, unaccounted, _bubble)
    causes = [cause for find in every if (cause := find(times))]
    if causes:
        return max(causes, key=lambda cause: cause.share or 0.0)
    if (share := _in_step(times, _messages(times))) >= LARGE:
        return Verdict(
            "not enough evidence",
            f"the stages wait {percent(share)} of a step for messages, but some workers share their CPUs with other "
            "programs",
        )
    if unsteady := next((late.rank for late in late_ranks(times, _passes) if not late.steady), None):
        return Verdict(
            "not enough evidence",
            f"{_stage(times, unsteady)} computes longer than the others, but only in a part of the run",
        )
    return Verdict(
        "balanced",
        f"each stage computes for {percent(share_of(times, _passes))} of a step, none much longer than the others, and "
        f"the bubble of the schedule is {percent(_in_step(times, _idle(times)))} of it",
        ("--precision bf16 would make a step shorter",),
    )


def _passes(rank: RankTimes) -> list[float]:
    return seconds_of(rank, "forward", "backward")


def _stages(times: StepTimes) -> list[tuple[float, ...]]:
    """Seconds per step for which each stage computes, in each stretch."""
    return list(zip(*map(_passes, times.ranks)))


def _schedule(times: StepTimes, stages: Sequence[float]) -> float:
    """Seconds from the first pass of a step to the last, as the module has it."""
    return (sum(stages) + (times.micro_batches - 1) * max(stages)) / times.micro_batches


def _idle(times: StepTimes) -> list[float]:
    """Seconds per step for which the schedule has the longest stage wait, in each stretch: the bubble."""
    return [_schedule(times, stages) - max(stages) for stages in _stages(times)]


def _messages(times: StepTimes) -> list[float]:
    """Seconds of a step, in each stretch, that are in no part of it and not in its schedule."""
    outside = (
        [max(of) for of in zip(*(measure(rank) for rank in times.ranks))]
        for measure in (data, lambda rank: seconds_of(rank, "optimizer"), rest)
    )
    inside = [_schedule(times, stages) for stages in _stages(times)]
    return [whole - sum(parts) for whole, *parts in zip(step(times.ranks[0]), inside, *outside)]


def _in_step(times: StepTimes, seconds: Sequence[float]) -> float:
    """A time as a share of a step, in the median stretch."""
    return statistics.median(part / whole for part, whole in zip(seconds, step(times.ranks[0])))


def _long_stage(times: StepTimes) -> Verdict | None:
    """The verdict that names a long stage. How long it would be on another rank is not known from one run."""
    late = [late for late in late_ranks(times, _passes) if late.steady]
    if not late:
        return None
    longest = max(late, key=lambda each: each.its)
    long = {each.rank.rank for each in late}
    stages = _stages(times)
    usual = [statistics.median(of for rank, of in enumerate(each) if rank not in long) for each in stages]
    as_the_others = [[min(of, most) for of in each] for each, most in zip(stages, usual)]
    cut_evenly = [[statistics.fmean(each)] * len(each) for each in stages]
    slow, uneven = (
        _in_step(times, [_schedule(times, now) - _schedule(times, then) for now, then in zip(stages, shorter)])
        for shorter in (as_the_others, cut_evenly)
    )
    return Verdict(
        "long stage",
        f"{_stage(times, longest.rank)} computes for {ms(longest.its)} of a step, the others for {ms(longest.others)}: "
        f"that costs {percent(slow)} of the training if the rank is slow, {percent(uneven)} if the model is cut "
        f"unevenly, which look alike in one run{also(late, longest)}{waiting_for_cpu(times, longest.rank)}",
        (
            "train some steps with --strategy ddp on the same workers and explain that run: all ranks compute the same "
            f"there, so that it names rank {longest.rank.rank} if it is slow",
            "if not, the cut is uneven: fewer stages (workers), or train again, as each run measures where to cut",
        ),
        slow,
        tuple(each.rank.rank for each in late),
    )


def _slow_data(times: StepTimes) -> Verdict | None:
    slowest = max(times.ranks, key=lambda rank: statistics.median(data(rank)))
    share = _in_step(times, data(slowest))
    if share < LARGE:
        return None
    return Verdict(
        "slow data",
        f"{_stage(times, slowest)} takes {ms(statistics.median(data(slowest)))} of a step of "
        f"{ms(typical(times, step))} to make the batch, and the others wait: {percent(share)} of the training",
        LESS_DATA,
        share,
        (slowest.rank,),
    )


def _slow_link(times: StepTimes) -> Verdict | None:
    share = _in_step(times, _messages(times))
    return slow_exchange(
        times,
        f"the stages wait for {ms(statistics.median(_messages(times)))} of a step of {ms(typical(times, step))} for "
        f"messages {{where}}, beyond their passes and the bubble of the schedule: {percent(share)} of the training",
        "--precision bf16, which halves what the stages send",
        share,
    )


def _bubble(times: StepTimes) -> Verdict | None:
    share = _in_step(times, _idle(times))
    if share < LARGE:
        return None
    stages, parts = len(times.ranks), times.micro_batches
    return Verdict(
        "bubble",
        f"the stages wait for {ms(statistics.median(_idle(times)))} of a step of {ms(typical(times, step))} while the "
        f"pipeline fills and drains, as the schedule of {parts} micro-batch{'es' * (parts > 1)} in {stages} stages has "
        f"it: {percent(share)} of the training",
        (
            "--strategy gpipe or one_f_one_b, whose stages compute at the same time"
            if times.strategy == "model_parallel"
            else f"more micro-batches: --strategy-options.micro-batches {2 * parts} leaves about half of it",
            "fewer stages (workers)",
        ),
        share,
    )


def _stage(times: StepTimes, rank: RankTimes) -> str:
    """``stage 2 of 4 (rank 1 on node1)``."""
    return f"stage {rank.rank + 1} of {len(times.ranks)} ({name(rank)})"
