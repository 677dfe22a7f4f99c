"""What each strategy exchanges in a step, and how much of it a backward pass hides.

The bytes and messages are those of the strategies' docstrings, carried to what one worker and one node's link see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from cifar_ray.config.topology import Topology
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.planning.link import Route, Traffic
from cifar_ray.planning.span import Span

if TYPE_CHECKING:  # imports torch
    from cifar_ray.training.probe import Gradients

PLANNED = ("ddp", "all_reduce", "gather_scatter", "send_recv", "local_sgd")
"""Strategies that can be planned: every worker has the whole model and optimizer."""

AFTER = ("all_reduce", "gather_scatter", "send_recv")
"""Those whose exchange begins after the backward pass: what they wait is all that they exchange."""

STAR = "gather_scatter"
"""The one whose exchange passes through rank 0; that of the others goes around a ring."""


@dataclass(frozen=True)
class Exchange:
    """How a model's gradients are exchanged."""

    strategy: str  # one of those that can be planned
    gradients: Gradients  # what is exchanged
    bucket_bytes: int = 25 * 2**20  # of DDP; at how many bytes a bucket is closed
    compression: float = 1.0  # of DDP; which part of a gradient's bytes is sent
    sync_every: int = 1  # of local SGD; the steps from one average to the next
    state_bytes: int = 0  # of local SGD; the optimizer's state and batch norm's statistics, which are averaged, too
    has_trees: bool = False  # whether the backend chooses between a ring and a tree, as NCCL does; gloo has rings

    @classmethod
    def of(cls, config: ResolvedConfig, gradients: Gradients, device: str) -> Exchange:
        """That of a training on ``cpu`` or ``cuda``."""
        options = config.strategy_options
        states = 2 if config.optimizer == "adamw" else 1  # numbers that the optimizer keeps of each weight
        return cls(
            strategy=config.strategy,
            gradients=gradients,
            bucket_bytes=int(config.bucket_cap_mb * 2**20),
            compression=0.5 if options.get("comm_hook", "none") != "none" else 1.0,
            sync_every=options.get("sync_every", 1),
            state_bytes=states * gradients.size + gradients.buffer_bytes,
            has_trees=device == "cuda",
        )


def unknown(config: ResolvedConfig) -> str:
    """The option of a training whose exchange is not in the model; empty where it has none."""
    given = {
        "--freeze": bool(config.freeze),
        "--sync-batchnorm": config.sync_batchnorm,
        "--strategy-options.comm-hook powersgd": config.strategy_options.get("comm_hook") == "powersgd",
    }
    return next((flag for flag, is_given in given.items() if is_given), "")


@dataclass(frozen=True)
class Timeline:
    """The buckets of a step, in order: when each is ready, in seconds of the backward pass, and how long it takes."""

    ready: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def end(self) -> float:
        """When the last has been exchanged; they go one after the other."""
        end = 0.0
        for ready, seconds in zip(self.ready, self.seconds):
            end = max(end, ready) + seconds
        return end


def buckets(exchange: Exchange) -> list[tuple[int, float]]:
    """Bytes of DDP's buckets, and when each is ready; the last, as the strategy has it, after the whole pass."""
    gradients, filled = exchange.gradients, []
    held = 0
    for size, ready in zip(gradients.sizes, accumulate(gradients.ready, max)):
        held += size
        if held >= exchange.bucket_bytes:
            filled.append((held, ready))
            held = 0
    if held or not filled:
        filled.append((held, 1.0))
    filled[-1] = filled[-1][0], 1.0
    return filled


def all_reduce(size: float, topology: Topology, route: Route, has_trees: bool) -> Traffic:
    """An all-reduce of so many bytes: a ring, or where the backend has them and it is faster, a tree.

    A ring passes every node once, so each node's link carries what one worker sends.
    """
    workers = topology.world_size
    ring = _alike(2 * (workers - 1), 2 * (workers - 1) / workers * size, topology)
    if not has_trees:
        return ring
    tree = _alike(2 * math.ceil(math.log2(workers)), 2 * size, topology)
    return min(ring, tree, key=lambda traffic: route.seconds(traffic).mid)


def traffic(exchange: Exchange, topology: Topology, route: Route) -> Traffic:
    """All that is exchanged in a step, on average where it is not in every one."""
    workers, gradients = topology.world_size, exchange.gradients
    if workers == 1:
        return Traffic(0, 0, 0)
    if exchange.strategy == STAR:
        # All of it passes through rank 0; what the workers of its own node send passes no link.
        size = 2 * (workers - 1) * gradients.size
        wire = 2 * (workers - topology.workers_per_node) * gradients.size
        return Traffic(2 * len(gradients.sizes), size, wire)  # the others send at the same time
    if exchange.strategy == "send_recv":
        ring = all_reduce(gradients.size, topology, route, has_trees=False)
        # Between two ranks, gloo's two directions take turns on one connection.
        return ring._replace(wire=2 * ring.wire) if workers == 2 and not exchange.has_trees else ring
    if exchange.strategy == "local_sgd":
        whole = all_reduce(gradients.size + exchange.state_bytes, topology, route, exchange.has_trees)
        return Traffic(*(part / exchange.sync_every for part in whole))
    sizes: Sequence[float] = gradients.sizes
    if exchange.strategy == "ddp":
        sizes = [size * exchange.compression for size, _ in buckets(exchange)]
    parts = [all_reduce(part, topology, route, exchange.has_trees) for part in sizes]
    return Traffic(*map(sum, zip(*parts)))


def exposed(exchange: Exchange, topology: Topology, route: Route, backward: Span) -> Span:
    """Seconds of a step that an exchange adds to the last backward pass, which hides some of DDP's.

    At best, the buckets of DDP pass behind it and cost it nothing. At worst, the host's work takes from the pass as
    much as it takes by itself, as on a CPU that computes both, and the link alone works beside it.
    """
    if topology.world_size == 1:
        return Span.exactly(0.0)
    if exchange.strategy != "ddp":
        return route.seconds(traffic(exchange, topology, route))
    of_buckets = [
        (ready, all_reduce(size * exchange.compression, topology, route, exchange.has_trees))
        for size, ready in buckets(exchange)
    ]
    ready = tuple(at * backward.mid for at, _ in of_buckets)
    shortest = tuple(route.seconds(part).low for _, part in of_buckets)
    of_link = tuple(route.network_s(part) for _, part in of_buckets)
    of_host = sum(route.host_s(part) for _, part in of_buckets)
    low = Timeline(ready, shortest).end - backward.mid
    high = max(Timeline(ready, of_link).end - backward.mid + of_host, low)
    return Span(low, (low + high) / 2, high)


def _alike(messages: float, size: float, topology: Topology) -> Traffic:
    """Traffic in which each worker does the same, along a ring of all nodes or up and down a tree of them."""
    return Traffic(messages, size, size if topology.nodes > 1 else 0.0)
