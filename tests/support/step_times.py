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


def pipeline(
    *stages: float,
    micro_batches: int = 8,
    by_turns: bool = False,
    data: float = 2.0,
    message: float = 0.0,
    rest: float = 1.0,
    noise: float = 0.0,
    stretches: int = 20,
    late_in: float = 1.0,
    workers_per_node: int = 2,
    cpu_wait: float = 0.0,
    strategy: str = "gpipe",
) -> StepTimes:
    """A pipeline whose stages compute for so many ms of a step, played through micro-batch by micro-batch.

    ``message`` is the ms that a stage waits for each micro-batch that it is sent. All stages compute for as long as the
    first one but in the share ``late_in`` of the run.
    """
    draw = random.Random(0)
    columns: list[dict[str, list[float]]] = [{} for _ in stages]
    for number in range(stretches):
        usual = stages if number < late_in * stretches else [stages[0]] * len(stages)
        computing = [busy * (1 + noise * draw.gauss(0, 1)) for busy in usual]
        passes = [(busy / 3 / micro_batches, 2 * busy / 3 / micro_batches) for busy in computing]
        whole = _played(passes, micro_batches, by_turns, message)
        iteration = data + whole + USUAL["optimizer"] + rest
        for rank, busy in enumerate(computing):
            of = {"data": 0.1 if rank else data, "forward": busy / 3, "backward": 2 * busy / 3}
            of["optimizer"] = USUAL["optimizer"]
            of |= {"communication": iteration - sum(of.values()) - rest, "iteration": iteration}
            for part, value in of.items():
                columns[rank].setdefault(part, []).append(value)
    ranks = (rank_times(rank, rank // workers_per_node, of, cpu_wait=cpu_wait) for rank, of in enumerate(columns))
    return StepTimes(tuple(ranks), (0.001,) * stretches, strategy=strategy, micro_batches=micro_batches)


def _played(passes: Sequence[tuple[float, float]], micro_batches: int, by_turns: bool, message: float) -> float:
    """How long stages take for their forward and backward passes, each waiting for the other's messages."""
    last = len(passes) - 1
    pending = []
    for stage in range(last + 1):
        ahead = min(last + 1 - stage, micro_batches) if by_turns else micro_batches
        order = [(False, number) for number in range(ahead)]
        for number in range(micro_batches):
            order += [(True, number), (False, ahead + number)][: 1 + (ahead + number < micro_batches)]
        pending.append(order)
    ended: dict[tuple[int, bool, int], float] = {}
    free = [0.0] * (last + 1)
    while any(pending):
        for stage, left in enumerate(pending):
            while left:
                is_backward, number = left[0]
                begin = free[stage]
                if stage != (last if is_backward else 0):
                    before = stage + (1 if is_backward else -1), is_backward, number
                    if before not in ended:
                        break
                    begin = max(begin, ended[before]) + message
                left.pop(0)
                free[stage] = ended[stage, is_backward, number] = begin + passes[stage][is_backward]
    return max(free)
