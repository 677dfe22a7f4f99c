"""Objects of any kind between ranks; every rank calls these functions together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from cifar_ray.strategies.worker import Worker
from cifar_ray.training.errors import RankFailedError

T = TypeVar("T")


def from_rank0(worker: Worker, make: Callable[[], T]) -> T:
    """What ``make`` returns on rank 0, the only one that calls it; the others wait for it.

    Raises:
        RankFailedError: on the other ranks, when it raises anything on rank 0.
    """
    made: list[Any] = [False, None]
    try:
        if worker.rank == 0:
            made = [True, make()]
    finally:
        if worker.world_size > 1:
            dist.broadcast_object_list(made, src=0, device=worker.device)
    if not made[0]:
        raise RankFailedError("rank 0 has failed, and its own error says why")
    value: T = made[1]
    return value


def from_all(worker: Worker, mine: T) -> list[T]:
    """What every rank has, in their order."""
    every = [mine] * worker.world_size
    if worker.world_size > 1:
        dist.all_gather_object(every, mine)
    return every
