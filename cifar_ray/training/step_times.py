"""The times of the steps of every rank, gathered once at the end of a run."""

from __future__ import annotations

import socket
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.training.bottleneck import MOST_STRETCHES, STRETCH_S, RankTimes, Spread, StepTimes
from cifar_ray.training.clock import PARTS
from cifar_ray.training.setup import TrainingState

_COLUMNS = ("iteration", *PARTS)


def gather(state: TrainingState) -> StepTimes:
    """The times of all ranks, on every rank; call it after the last step."""
    worker, steps = state.worker, state.clock.steps()
    every = _everywhere(state, (worker.node, len(steps), float(steps[:, 0].sum())))
    least, shortest = min(count for _, count, _ in every), min(seconds for *_, seconds in every)
    stretches = max(min(MOST_STRETCHES, least, int(shortest / STRETCH_S)), 1)
    mine = _everywhere(state, (state.clock.cpu_wait, *_of_rank(steps, stretches)))
    nodes = list(dict.fromkeys(node for node, *_ in every))
    hosts = _everywhere(state, socket.gethostname())
    shown = len(set(hosts)) > 1  # else it tells nothing
    ranks = [
        RankTimes(rank, nodes.index(every[rank][0]), host * shown, every[rank][1], *of)
        for rank, (host, of) in enumerate(zip(hosts, mine))
    ]
    aligned = state.strategy.synchronous and worker.world_size > 1 and len({count for _, count, _ in every}) == 1
    exchange = _exchange(state, steps, stretches) if aligned and least else ()
    return StepTimes(tuple(ranks), exchange, state.strategy.synchronous, state.strategy.incomparable)


def _of_rank(steps: Tensor, stretches: int) -> tuple[Spread, dict[str, Spread], dict[str, tuple[float, ...]]]:
    """Spreads and stretches of a rank's steps: float64, (steps, columns)."""
    if not len(steps):
        return Spread(0.0, 0.0, 0.0), {}, {"iteration": (0.0,)}
    middle, high = steps.quantile(torch.tensor([0.5, 0.95], dtype=steps.dtype), dim=0).tolist()
    spreads = [Spread(*of) for of in zip(steps.mean(0).tolist(), middle, high)]
    means = torch.stack([part.mean(0) for part in steps.tensor_split(stretches)]).T.tolist()
    measured = [at for at, seconds in enumerate(steps.any(0).tolist()) if seconds]
    return (
        spreads[0],
        {_COLUMNS[at]: spreads[at] for at in measured if at},
        {_COLUMNS[at]: tuple(means[at]) for at in measured},
    )


def _exchange(state: TrainingState, steps: Tensor, stretches: int) -> tuple[float, ...]:
    """As :class:`StepTimes` has it."""
    least = steps[:, _COLUMNS.index("communication")].contiguous().to(state.worker.device)  # gloo reads plain memory
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return tuple(float(part.mean()) for part in least.cpu().tensor_split(stretches))


def _everywhere(state: TrainingState, mine: Any) -> list[Any]:
    """What every rank has, in their order."""
    every = [mine] * state.worker.world_size
    if state.worker.world_size > 1:
        dist.all_gather_object(every, mine)
    return every
