"""A verdict on a run, its words, and what is told of replicas and of the stages of a pipeline in the same way."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cifar_ray.training.rank_times import Late, RankTimes, StepTimes, rest, share_of, step, typical

Kind = Literal[
    "slow rank",
    "slow data",
    "slow link",
    "too few CPUs",
    "overhead",
    "long stage",
    "bubble",
    "balanced",
    "not enough evidence",
]

LARGE = 0.15
"""Share of a step from which data, the exchange, a bubble, or what is in no part bounds it."""
CROWDED = 0.10
"""Share of its time for which a worker on a shared CPU waits for it: it delays an exchange as a slow link does."""
LESS_DATA = ("a cheaper --augment, or none", "more CPUs for a worker (--cpus-per-worker)")
"""What makes the batches sooner."""
STOP_OTHERS = "stop other programs there (see `top`)"


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


def crowded(times: StepTimes) -> Verdict | None:
    """The verdict where every rank waits for CPUs: what takes long by less than that does not do so by itself."""
    share = min(min(rank.cpu_wait for rank in times.ranks), 1.0)
    if share < CROWDED:
        return None
    who = "every rank waited for at least" if len(times.ranks) > 1 else "the worker waited for"
    return Verdict(
        "too few CPUs",
        f"{who} {percent(share)} of training. Run fewer programs at once",
        ("fewer workers on a node", STOP_OTHERS),
        share,
    )


def unaccounted(times: StepTimes) -> Verdict | None:
    """The verdict where much of a step is in no part of it."""
    share = share_of(times, rest)
    if share < LARGE:
        return None
    return Verdict(
        "overhead",
        f"{ms(typical(times, rest))} of a step of {ms(typical(times, step))} go to work between its parts, such as "
        f"recording the loss: {percent(share)} of training",
        ("a larger --log-every", "a larger global batch, which has fewer steps"),
        share,
    )


def slow_exchange(times: StepTimes, sentence: str, less: str, share: float) -> Verdict | None:
    """The verdict where messages take so much of a step; none on crowded CPUs, which delay them as a slow link does.

    ``{where}`` in the sentence is between what they go, and ``less`` the advice to exchange less.
    """
    if share < LARGE or max(rank.cpu_wait for rank in times.ranks) >= CROWDED:
        return None
    if len({rank.node for rank in times.ranks}) > 1:
        look = "measure the network (iperf3), and see which interface is used (placement.json)"
        return Verdict("slow link", sentence.format(where="between the nodes"), (less, look), share)
    return Verdict(
        "overhead", sentence.format(where="within the node"), (less, "fewer workers with more CPUs each"), share
    )


def name(rank: RankTimes) -> str:
    """``rank 1 on node0 (host)``; the host where there are several."""
    host = f" ({rank.host})" if rank.host else ""
    return f"rank {rank.rank} on node{rank.node}{host}"


def also(late: Sequence[Late], but: Late) -> str:
    """``; so do ranks 2 and 3``: the late ones but one; empty without others."""
    numbers = [str(each.rank.rank) for each in late if each is not but]
    several = len(numbers) > 1
    among = " and ".join(filter(None, (", ".join(numbers[:-1]), *numbers[-1:])))
    return f"; so {'do' if several else 'does'} rank{'s' * several} {among}" if numbers else ""


def waiting_for_cpu(times: StepTimes, rank: RankTimes) -> str:
    """``; it waits for a CPU for 28 % of the time``: where the other ranks wait less; else empty."""
    usual = statistics.median(other.cpu_wait for other in times.ranks if other is not rank)
    is_longer = rank.cpu_wait - usual >= CROWDED
    return f"; it waits for a CPU for {percent(rank.cpu_wait)} of the time" * is_longer


def percent(share: float) -> str:
    """``21 %``."""
    return f"{100 * share:.0f} %"


def ms(seconds: float) -> str:
    """``92 ms``, ``8.3 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.{0 if milliseconds >= 10 else 1}f} ms"
