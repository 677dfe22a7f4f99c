"""Times of steps on several ranks, as runs record them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cifar_ray.training.rank_times import RankTimes, Spread, StepTimes

USUAL = {"data": 4.0, "forward": 30.0, "backward": 60.0, "optimizer": 2.0}
EXCHANGE = 4.0


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), statistics.median(values), max(values))


def rank_times(rank: int, node: int, stretches: Mapping[str, Sequence[float]], **changes: Any) -> RankTimes:
    """The times of a rank by its stretches, in ms."""
    seconds = {part: tuple(value / 1000 for value in values) for part, values in stretches.items()}
    parts = {part: spread(values) for part, values in seconds.items() if part != "iteration"}
    made = RankTimes(rank, node, "", 200, 0.0, spread(seconds["iteration"]), parts, seconds)
    return replace(made, **changes)


def run(
    *ranks: Mapping[str, float],
    exchange: float = EXCHANGE,
    rest: float = 1.0,
    noise: float = 0.0,
    stretches: int = 20,
    late_in: float = 1.0,
    workers_per_node: int = 2,
    cpu_wait: Sequence[float] = (),
) -> StepTimes:
    """A run of ranks in step, whose parts take as many ms longer than usual as ``ranks`` say.

    ``noise`` is the standard deviation of a stretch's times as a share; a rank is slow in the share ``late_in`` of the
    run alone.
    """
    draw = random.Random(0)
    columns: list[dict[str, list[float]]] = [{} for _ in ranks]
    for number in range(stretches):
        slow = number < late_in * stretches
        times = [
            {
                part: (usual + more.get(part, 0.0) * slow) * (1 + noise * draw.gauss(0, 1))
                for part, usual in USUAL.items()
            }
            for more in ranks
        ]
        until = [sum(of.values()) - of["optimizer"] for of in times]
        for rank, of in enumerate(times):
            communication = (max(until) - until[rank] + exchange) if len(ranks) > 1 else 0.01
            whole = {**of, "communication": communication}
            for part, value in {**whole, "iteration": sum(whole.values()) + rest}.items():
                columns[rank].setdefault(part, []).append(value)
    waits = dict(enumerate(cpu_wait))
    return StepTimes(
        tuple(
            rank_times(rank, rank // workers_per_node, of, cpu_wait=waits.get(rank, 0.0))
            for rank, of in enumerate(columns)
        ),
        (exchange / 1000,) * stretches if len(ranks) > 1 else (),
    )


def at_own_pace(*ranks: Mapping[str, float], communication: float = 2.0) -> StepTimes:
    """A run whose ranks do not wait for each other."""
    of = [{part: [usual + more.get(part, 0.0)] * 20 for part, usual in USUAL.items()} for more in ranks]
    for each in of:
        each["communication"] = [communication] * 20
        each["iteration"] = [sum(values) for values in zip(*each.values())]
    return StepTimes(tuple(rank_times(rank, 0, each) for rank, each in enumerate(of)), synchronous=False)
