"""The parameter servers as Ray actors, for the strategy that has some.

Rank 0 makes them on the workers' nodes, the first on its own, and they end with it. After a restart the workers make
others, whose state comes from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch
import torch.distributed as dist

from cifar_ray import strategies
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection
from cifar_ray.strategies.served_weights import ParameterServer, ServerHandle, ShardedServer
from cifar_ray.strategies.worker import Worker


class _Server(ParameterServer):
    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        super().__init__()


class RayServer:
    """The actor as a worker uses it: every method of a server waits for its answer."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *arguments: ray.get(getattr(self._actor, method).remote(*arguments))


def start(config: TrainConfig, threads: int, worker: Worker, nodes: Sequence[str]) -> ServerHandle | None:
    """Start the servers of a strategy that has some, and return them on every rank; None otherwise.

    Every rank calls this. A server computes with so many ``threads``, as a worker does, and reserves no CPU. Servers
    take turns on the ``nodes`` of all workers, and end when rank 0 drops its handle.
    """
    if not strategies.of(config).needs_server:
        return None
    count = config.strategy_options["servers"]
    actors: list[Any] = [None] * count
    if worker.rank == 0:
        for number in range(count):
            kind = connection.on_node(_Server, nodes[number % len(nodes)], max_concurrency=worker.world_size)
            actors[number] = kind.remote(threads)
    if worker.world_size > 1:
        dist.broadcast_object_list(actors, src=0, device=worker.device)
    servers: list[Any] = [RayServer(actor) for actor in actors]
    return servers[0] if len(servers) == 1 else ShardedServer(servers)
