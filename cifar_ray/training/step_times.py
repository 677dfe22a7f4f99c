"""The times of the steps of every rank, gathered once at the end of a run."""

from __future__ import annotations

import socket

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cifar_ray.training.collectives import from_all
from cifar_ray.training.rank_times import MOST_STRETCHES, PARTS, STRETCH_S, RankTimes, Spread, StepTimes
from cifar_ray.training.setup import TrainingState

_COLUMNS = ("iteration", *PARTS)


def gather(state: TrainingState) -> StepTimes:
    """The times of all ranks, on every rank; call it after the last step."""
    worker, steps = state.worker, state.clock.steps()
    every = from_all(worker, (worker.node, socket.gethostname(), len(steps), float(steps[:, 0].sum())))
    of_nodes, hosts, counts, seconds = zip(*every)
    least, shortest = min(counts), min(seconds)
    stretches = max(min(MOST_STRETCHES, least, int(shortest / STRETCH_S)), 1)
    mine = from_all(worker, (state.clock.cpu_wait, *_of_rank(steps, stretches)))
    nodes = list(dict.fromkeys(of_nodes))
    shown = len(set(hosts)) > 1  # else it tells nothing
    ranks = [
        RankTimes(rank, nodes.index(node), host * shown, count, *of)
        for rank, (node, host, count, of) in enumerate(zip(of_nodes, hosts, counts, mine))
    ]
    aligned = state.strategy.synchronous and worker.world_size > 1 and len(set(counts)) == 1
    exchange: tuple[float, ...] = ()
    if aligned and least:
        fewest = steps[:, _COLUMNS.index("communication")].contiguous().to(worker.device)  # gloo reads plain memory
        dist.all_reduce(fewest, dist.ReduceOp.MIN)
        exchange = tuple(float(part.mean()) for part in fewest.cpu().tensor_split(stretches))
    return StepTimes(tuple(ranks), exchange, state.strategy.synchronous, state.strategy.incomparable)


def _of_rank(steps: Tensor, stretches: int) -> tuple[Spread, dict[str, Spread], dict[str, tuple[float, ...]]]:
    """Spreads and stretches of a rank's steps: float64, (steps, columns)."""
    if not len(steps):
        return Spread(0.0, 0.0, 0.0), {}, {"iteration": (0.0,)}
    middle, high = np.quantile(steps.numpy(), [0.5, 0.95], axis=0).tolist()  # torch's takes 16 million numbers at most
    spreads = [Spread(*of) for of in zip(steps.mean(0).tolist(), middle, high)]
    means = torch.stack([part.mean(0) for part in steps.tensor_split(stretches)]).T.tolist()
    measured = [at for at, seconds in enumerate(steps.any(0).tolist()) if seconds]
    return (
        spreads[0],
        {_COLUMNS[at]: spreads[at] for at in measured if at},
        {_COLUMNS[at]: tuple(means[at]) for at in measured},
    )
