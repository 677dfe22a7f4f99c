"""What bounds a run: a verdict from the times of its steps on every rank, with what to try.

Ranks that exchange gradients end a step together, so a slow rank does not have longer steps: the others wait for it.
What tells it apart is its time until the last gradient, which the strategies mark before they exchange. A rank is slow
only if it is so in most stretches of the run, not in a pause, or beside another program for a moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cifar_ray.training.rank_times import LEAST_STRETCHES, PARTS, STRETCH_S, RankTimes, StepTimes

Kind = Literal["slow rank", "slow data", "slow link", "too few CPUs", "overhead", "balanced", "not enough evidence"]

LARGE = 0.15
"""Share of a step from which data, the exchange, a wait, or what is in no part bounds it."""
CROWDED = 0.10
"""Share of its time for which a worker on a shared CPU waits for it: it delays an exchange as a slow link does."""
LATE, STILL_LATE, MOST, COSTS = 0.10, 0.05, 0.75, 0.05
"""A slow rank takes longer by the first share in the median stretch, by the second in at least the third of all
stretches, and costs at least the last share of a step."""

_COMPUTING = ("forward", "backward", "optimizer")
_LESS = {
    "ddp": "--accumulate, --strategy-options.comm-hook bf16, or --strategy local_sgd",
    "local_sgd": "a larger --strategy-options.sync-every",
}
_LESS_ANYWHERE = "--accumulate, --strategy ddp with --strategy-options.comm-hook bf16, or --strategy local_sgd"
"""What makes an exchange smaller or rarer, by strategy, and with the others."""
_STOP_OTHERS = "stop other programs there (see `top`)"


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


@dataclass(frozen=True)
class Measured:
    """What a cause costs.

    Attributes:
        share: of a step, 0 to 1.
        seconds: per step.
        others: that the other ranks take.
        late: the ranks that are late, the slowest first.
    """

    share: float = 0.0
    seconds: float = 0.0
    others: float = 0.0
    late: tuple[RankTimes, ...] = ()


@dataclass(frozen=True)
class Cause:
    """A row of the table: its name, how it is measured, the share from which it is named, and the words for it."""

    kind: Kind
    measure: Callable[[StepTimes], Measured]
    least: float
    sentence: str
    advice: tuple[str, ...]


def explain(times: StepTimes) -> Verdict:
    """What bounds a run with these times; of several causes, the one that costs most."""
    if problem := _problem(times):
        return Verdict("not enough evidence", problem)
    measured = [(cause, cause.measure(times)) for cause in CAUSES]
    if causes := [(cause, cost) for cause, cost in measured if cost.share >= cause.least]:
        return _verdict(times, *max(causes, key=lambda each: each[1].share))
    waits = max(np.median(_shares(times, "communication"), axis=1))
    if waits >= LARGE:
        return Verdict(
            "not enough evidence",
            f"a rank exchanges and waits for {percent(waits)} of a step, but these times do not tell whether for the "
            "link, a CPU, a server or another rank",
        )
    alone = len(times.ranks) == 1
    return Verdict(
        "balanced",
        f"computing takes {percent(float(np.median(_shares(times, *_COMPUTING))))} of a step"
        + ("" if alone else f", and no rank exchanges or waits for {percent(LARGE)} of it"),
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
    first = times.ranks[0]
    if len(first.stretches.get("iteration", ())) < LEAST_STRETCHES:
        return (
            f"{first.steps:,} measured steps of {first.steps * first.iteration.mean:.1f} s together are too few: "
            f"{LEAST_STRETCHES} steps and {LEAST_STRETCHES * STRETCH_S:.1f} s are needed"
        )
    return times.incomparable if len(times.ranks) > 1 else ""


def _seconds(times: StepTimes, *parts: str) -> np.ndarray:
    """Seconds per step of these parts together: float64, (ranks, stretches)."""
    stretches = len(times.ranks[0].stretches["iteration"])
    nothing = (0.0,) * stretches
    return np.array([[rank.stretches.get(part, nothing) for part in parts] for rank in times.ranks]).sum(axis=1)


def _shares(times: StepTimes, *parts: str) -> np.ndarray:
    """The same as shares of a step."""
    return _seconds(times, *parts) / _seconds(times, "iteration")


def _cpu_wait(times: StepTimes) -> Measured:
    return Measured(min(1.0, *(rank.cpu_wait for rank in times.ranks)))


def _data(times: StepTimes) -> Measured:
    return Measured(float(np.median(_shares(times, "data"))), float(np.median(_seconds(times, "data"))))


def _rest(times: StepTimes) -> Measured:
    seconds = np.maximum(_seconds(times, "iteration") - _seconds(times, *PARTS), 0.0)
    return Measured(float(np.median(seconds / _seconds(times, "iteration"))), float(np.median(seconds)))


def _exchange(times: StepTimes, between: bool) -> Measured:
    """The exchange once the last rank has come, between or within nodes; crowded CPUs delay it as a slow link does."""
    crowded = max(rank.cpu_wait for rank in times.ranks) >= CROWDED
    if not times.exchange or crowded or (len({rank.node for rank in times.ranks}) > 1) != between:
        return Measured()
    exchange, steps = np.array(times.exchange), _seconds(times, "iteration")[0]
    return Measured(float(np.median(exchange / steps)), float(np.median(exchange)))


def _by_turns(times: StepTimes) -> Measured:
    """How long ranks wait for the slowest, where every one waits: if one does not, the others wait for it."""
    if not times.exchange:
        return Measured()
    waits = (_seconds(times, "communication") - np.array(times.exchange)) / _seconds(times, "iteration")
    by_rank = np.median(waits, axis=1)
    share = float(by_rank.mean())
    return Measured(share if by_rank.min() >= share / 2 else 0.0)


def _late(times: StepTimes, parts: tuple[str, ...], of_step: bool = False) -> Measured:
    """The ranks that take longer for these parts than the others, by a share of the others' time or of a step."""
    seconds, steps = _seconds(times, *parts), _seconds(times, "iteration")
    waits = np.median(_seconds(times, "communication"), axis=1)
    late = []
    for at, rank in enumerate(times.ranks if len(times.ranks) > 1 else ()):
        others = np.median(np.delete(seconds, at, axis=0), axis=0)
        longer = seconds[at] - others
        by, share = longer / (steps[at] if of_step else others), float(np.median(longer / steps[at]))
        steady = np.median(by) >= LATE and np.mean(by >= STILL_LATE) >= MOST
        others_wait = np.median(np.delete(waits, at)) - waits[at] >= np.median(longer) / 2
        if steady and share >= COSTS and (others_wait or not times.synchronous):
            late.append((share, float(np.median(seconds[at])), float(np.median(others)), rank))
    late.sort(key=lambda each: each[0], reverse=True)
    return Measured(*late[0][:3], tuple(rank for *_, rank in late)) if late else Measured()


CAUSES = (
    Cause(
        "too few CPUs",
        _cpu_wait,
        CROWDED,
        "every rank waits for a CPU for at least {share} of the training",
        ("fewer workers on a node", _STOP_OTHERS),
    ),
    Cause(
        "slow rank",
        lambda times: _late(times, _COMPUTING),
        COSTS,
        "{rank} takes {seconds} for forward, backward and the optimizer, the others {others}: {wait}, {share} of the "
        "training{also}",
        (
            "look at what else runs on {node} (top, nvidia-smi), at its clock, and at the CPUs that the rank may use",
            "give every rank CPUs of its own (fewer workers on a node), or leave a node that stays slow out",
        ),
    ),
    Cause(
        "slow data",
        lambda times: _late(times, ("data",), of_step=True),
        COSTS,
        "{rank} takes {seconds} to make its part of a batch, the others {others}: {wait}, {share} of the "
        "training{also}",
        (
            "look at the disk, the memory and the CPUs of {node}",
            "a data set in memory (without --stream) needs no disk",
        ),
    ),
    Cause(
        "slow data",
        _data,
        LARGE,
        "making the batches takes {seconds} of a step of {step}: {share} of the training",
        ("a cheaper --augment, or none", "more CPUs for a worker (--cpus-per-worker)"),
    ),
    Cause(
        "slow link",
        lambda times: _exchange(times, between=True),
        LARGE,
        "the exchange between the nodes takes {seconds} of a step of {step} once the last rank has come: {share} of "
        "the training",
        (
            "exchange less: {less}",
            "measure the network (iperf3), and see which interface is used (placement.json)",
        ),
    ),
    Cause(
        "overhead",
        lambda times: _exchange(times, between=False),
        LARGE,
        "the exchange within the node takes {seconds} of a step of {step} once the last rank has come: {share} of the "
        "training",
        ("exchange less: {less}", "fewer workers with more CPUs each"),
    ),
    Cause(
        "overhead",
        _rest,
        LARGE,
        "{seconds} of a step of {step} go to work between its parts, such as recording the loss: {share} of the "
        "training",
        ("a larger --log-every", "a larger global batch, which has fewer steps"),
    ),
    Cause(
        "overhead",
        _by_turns,
        LARGE,
        "the ranks wait for the slowest for {share} of the training, and each time another one is the slowest",
        ("run at most as many workers on a node as it has CPUs", _STOP_OTHERS),
    ),
)


def _verdict(times: StepTimes, cause: Cause, cost: Measured) -> Verdict:
    """The words of a cause, with its numbers."""
    words = {
        "share": percent(cost.share),
        "seconds": ms(cost.seconds),
        "others": ms(cost.others),
        "step": ms(float(np.median(_seconds(times, "iteration")))),
        "less": _LESS.get(times.strategy, _LESS_ANYWHERE),
    }
    if cost.late:
        slowest, *rest = cost.late
        host = f" ({slowest.host})" if slowest.host else ""
        more = ms(cost.seconds - cost.others)
        usual = np.median([rank.cpu_wait for rank in times.ranks if rank is not slowest])
        words |= {
            "rank": f"rank {slowest.rank} on node{slowest.node}{host}",
            "node": f"node{slowest.node}",
            "wait": f"they wait {more} in every step" if times.synchronous else f"its epochs end {more} a step later",
            "also": f"; it waits for a CPU for {percent(slowest.cpu_wait)} of the time"
            * bool(slowest.cpu_wait - usual >= CROWDED)
            + "".join(f"; so does rank {rank.rank}" for rank in rest),
        }
    advice = tuple(text.format(**words) for text in cause.advice)
    return Verdict(cause.kind, cause.sentence.format(**words), advice, cost.share, tuple(r.rank for r in cost.late))


def percent(share: float) -> str:
    """``21 %``."""
    return f"{100 * share:.0f} %"


def ms(seconds: float) -> str:
    """``92 ms``, ``8.3 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.{0 if milliseconds >= 10 else 1}f} ms"
