"""What bounds a run: a verdict from the times of its steps on every rank, with what to try.

Ranks that exchange gradients end a step together, so a slow rank does not have longer steps: the others wait for it.
What tells it apart is its time until the last gradient, which the strategies mark before they exchange. A rank is slow
only if it is so in most stretches of the run, not in a pause, or beside another program for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


class Cause(NamedTuple):
    """A row of the table: the verdict, the share of a step from which it is named, and its words."""

    kind: Kind
    least: float
    sentence: str
    advice: tuple[str, ...]


_STOP_OTHERS = "stop other programs there (see `top`)"
_EXCHANGE = "takes {seconds} of a step of {step} once the last rank has come: {share} of the training"
_EXCHANGE_LESS = (
    "exchange less: --accumulate, --strategy ddp with --strategy-options.comm-hook bf16, or --strategy local_sgd with "
    "a large --strategy-options.sync-every"
)
CAUSES = {
    "cpu": Cause(
        "too few CPUs",
        CROWDED,
        "every rank waits for a CPU for at least {share} of the training",
        ("fewer workers on a node", _STOP_OTHERS),
    ),
    "rank": Cause(
        "slow rank",
        COSTS,
        "{rank} takes {seconds} for forward, backward and the optimizer, the others {others}: {wait}",
        (
            "look at what else runs on {node} (top, nvidia-smi), at its clock, and at the CPUs that the rank may use",
            "give every rank CPUs of its own (fewer workers on a node), or leave a node that stays slow out",
        ),
    ),
    "data of a rank": Cause(
        "slow data",
        COSTS,
        "{rank} takes {seconds} to make its part of a batch, the others {others}: {wait}",
        (
            "look at the disk, the memory and the CPUs of {node}",
            "a data set in memory (without --stream) needs no disk",
        ),
    ),
    "data": Cause(
        "slow data",
        LARGE,
        "making the batches takes {seconds} of a step of {step}: {share} of the training",
        ("a cheaper --augment, or none", "more CPUs for a worker (--cpus-per-worker)"),
    ),
    "link": Cause(
        "slow link",
        LARGE,
        f"the exchange between the nodes {_EXCHANGE}",
        (_EXCHANGE_LESS, "measure the network (iperf3), and see which interface is used (placement.json)"),
    ),
    "exchange": Cause(
        "overhead",
        LARGE,
        f"the exchange within the node {_EXCHANGE}",
        (_EXCHANGE_LESS, "fewer workers with more CPUs each"),
    ),
    "rest": Cause(
        "overhead",
        LARGE,
        "{seconds} of a step of {step} go to work between its parts, such as recording the loss: {share} of the "
        "training",
        ("a larger --log-every", "a larger global batch, which has fewer steps"),
    ),
    "turns": Cause(
        "overhead",
        LARGE,
        "the ranks wait for the slowest for {share} of the training, and each time another one is the slowest",
        ("run at most as many workers on a node as it has CPUs", _STOP_OTHERS),
    ),
}


class Cost(NamedTuple):
    """What a cause costs: a share of a step, seconds, those of other ranks, and the late ranks, the latest first."""

    share: float
    seconds: float = 0.0
    others: float = 0.0
    late: tuple[RankTimes, ...] = ()


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


def explain(times: StepTimes) -> Verdict:
    """What bounds a run with these times; of several causes, the one that costs most."""
    if problem := _problem(times):
        return Verdict("not enough evidence", problem)
    nothing = (0.0,) * len(times.ranks[0].stretches["iteration"])
    columns = ("iteration", *PARTS)
    seconds = {part: np.array([rank.stretches.get(part, nothing) for rank in times.ranks]) for part in columns}
    steps, computing = seconds["iteration"], seconds["forward"] + seconds["backward"] + seconds["optimizer"]
    costs = dict(_costs(times, seconds, computing))
    if named := [name for name, cost in costs.items() if cost.share >= CAUSES[name].least]:
        most = max(named, key=lambda name: costs[name].share)
        return _verdict(times, CAUSES[most], costs[most], float(np.median(steps)))
    waits = max(np.median(seconds["communication"] / steps, axis=1))
    if waits >= LARGE:
        return Verdict(
            "not enough evidence",
            f"a rank exchanges and waits for {percent(waits)} of a step, but these times do not tell whether for the "
            "link, a CPU, a server or another rank",
        )
    alone = len(times.ranks) == 1
    return Verdict(
        "balanced",
        f"computing takes {percent(float(np.median(computing / steps)))} of a step"
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
            f"the {first.steps:,} measured steps took {first.steps * first.iteration.mean:.1f} s together: "
            f"at least {LEAST_STRETCHES} steps that take {LEAST_STRETCHES * STRETCH_S:.1f} s or more are needed"
        )
    return times.incomparable if len(times.ranks) > 1 else ""


def _costs(times: StepTimes, seconds: Mapping[str, np.ndarray], computing: np.ndarray) -> Iterator[tuple[str, Cost]]:
    """What each of :data:`CAUSES` costs, where these times tell; ``seconds`` per step are (ranks, stretches)."""
    steps, cpu_waits = seconds["iteration"], [rank.cpu_wait for rank in times.ranks]

    def cost(spent: np.ndarray, of: np.ndarray = steps) -> Cost:
        return Cost(float(np.median(spent / of)), float(np.median(spent)))

    yield "cpu", Cost(min(1.0, *cpu_waits))
    yield "rank", _late(times, seconds, computing, by_step=False)
    yield "data of a rank", _late(times, seconds, seconds["data"], by_step=True)
    yield "data", cost(seconds["data"])
    yield "rest", cost(np.maximum(steps - sum(seconds[part] for part in PARTS), 0.0))
    if times.exchange:
        exchange = np.array(times.exchange)
        if max(cpu_waits) < CROWDED:
            yield "link" if len({rank.node for rank in times.ranks}) > 1 else "exchange", cost(exchange, steps[0])
        waits = np.median((seconds["communication"] - exchange) / steps, axis=1)
        if waits.min() >= waits.mean() / 2:  # if one rank does not wait, the others wait for it
            yield "turns", Cost(float(waits.mean()))


def _late(times: StepTimes, seconds: Mapping[str, np.ndarray], spent: np.ndarray, by_step: bool) -> Cost:
    """The ranks for which ``spent`` is longer than for the others, by a share of a step or of the others' time."""
    steps, waits = seconds["iteration"], np.median(seconds["communication"], axis=1)
    late = []
    for at, rank in enumerate(times.ranks if len(times.ranks) > 1 else ()):
        others = np.median(np.delete(spent, at, axis=0), axis=0)
        longer = spent[at] - others
        by, share = longer / (steps[at] if by_step else others), float(np.median(longer / steps[at]))
        steady = np.median(by) >= LATE and np.mean(by >= STILL_LATE) >= MOST
        others_wait = np.median(np.delete(waits, at)) - waits[at] >= np.median(longer) / 2
        if steady and share >= COSTS and (others_wait or not times.synchronous):
            late.append(Cost(share, float(np.median(spent[at])), float(np.median(others)), (rank,)))
    late.sort(key=lambda cost: cost.share, reverse=True)
    return late[0]._replace(late=tuple(rank for cost in late for rank in cost.late)) if late else Cost(0.0)


def _verdict(times: StepTimes, cause: Cause, cost: Cost, step_s: float) -> Verdict:
    """The words of a cause, with its numbers."""
    words = {"share": percent(cost.share), "seconds": ms(cost.seconds), "others": ms(cost.others), "step": ms(step_s)}
    if cost.late:
        slowest, *rest = cost.late
        more, node = ms(cost.seconds - cost.others), f"node{slowest.node}"
        wait = f"they wait {more} in every step" if times.synchronous else f"its epochs end {more} a step later"
        wait += f", {words['share']} of the training"
        usual = np.median([rank.cpu_wait for rank in times.ranks if rank is not slowest])
        if slowest.cpu_wait - usual >= CROWDED:
            wait += f"; it waits for a CPU for {percent(slowest.cpu_wait)} of the time"
        wait += "".join(f"; so does rank {rank.rank}" for rank in rest)
        name = f"rank {slowest.rank} on {node}" + (f" ({slowest.host})" if slowest.host else "")
        words |= {"rank": name, "node": node, "wait": wait}
    advice = tuple(text.format(**words) for text in cause.advice)
    return Verdict(cause.kind, cause.sentence.format(**words), advice, cost.share, tuple(r.rank for r in cost.late))


def percent(share: float) -> str:
    """``21 %``."""
    return f"{100 * share:.0f} %"


def ms(seconds: float) -> str:
    """``92 ms``, ``8.3 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.{0 if milliseconds >= 10 else 1}f} ms"
