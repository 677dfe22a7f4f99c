"""Where workers run: ``2x2`` is two nodes with two workers each.

Pure functions on plain values. What a cluster really holds is read in ``orchestration``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cifar_ray.config.errors import counted


@dataclass(frozen=True)
class Topology:
    """``nodes`` machines with exactly ``workers_per_node`` workers on each."""

    nodes: int
    workers_per_node: int

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return self.nodes * self.workers_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.workers_per_node}"


@dataclass(frozen=True)
class Node:
    """What one live node of a cluster holds in all, whether in use or free."""

    node_id: str
    address: str
    cpus: float
    gpus: float = 0.0


def parse(text: str) -> Topology:
    """Read ``NODESxWORKERS``; a ValueError says what that is."""
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if match is None:
        rule = "must be NODESxWORKERS with whole numbers of at least 1, such as 1x2 or 2x2"
        raise ValueError(f"{rule}, got {text[:80]!r}")
    return Topology(int(match[1]), int(match[2]))


def parse_range(text: str) -> tuple[Topology, Topology]:
    """Read ``MIN:MAX``, two topologies; a ValueError says what that is."""
    low, _, high = text.partition(":")
    with suppress(ValueError):
        least, most = parse(low), parse(high)
        if least.nodes <= most.nodes and least.workers_per_node <= most.workers_per_node:
            return least, most
    rule = "must be MIN:MAX, two topologies such as 1x1:2x2, MIN at most MAX in nodes and in workers on each"
    raise ValueError(f"{rule}, got {text[:80]!r}")


def between(low: Topology, high: Topology) -> list[Topology]:
    """All topologies of a range, those with the most workers first, of equals those on the fewest nodes."""
    topologies = [
        Topology(nodes, workers)
        for nodes in range(low.nodes, high.nodes + 1)
        for workers in range(low.workers_per_node, high.workers_per_node + 1)
    ]
    return sorted(topologies, key=lambda topology: (-topology.world_size, topology.nodes))


def capacity(node: Node, cpus_per_worker: int, gpus_per_worker: float) -> int:
    """How many workers of this size fit on an empty ``node``; part of a GPU is part of one, and of no two."""
    fits = int(node.cpus // cpus_per_worker)
    if 0 < gpus_per_worker < 1:
        whole, rest = divmod(node.gpus, 1)
        return min(fits, int(whole) * _parts(1, gpus_per_worker) + _parts(rest, gpus_per_worker))
    return min(fits, int(node.gpus // gpus_per_worker)) if gpus_per_worker else fits


def _parts(gpu: float, size: float) -> int:
    """How many parts of this size a GPU, or what is left of one, has; Ray counts in steps of 0.0001."""
    return round(gpu * 10_000) // max(round(size * 10_000), 1)


def choose(topology: Topology, nodes: Sequence[Node], cpus_per_worker: int, gpus_per_worker: float = 0) -> list[str]:
    """The node id for every worker, in rank order: the first ``topology.nodes`` that are large enough.

    Raises:
        ValueError: naming what the cluster lacks.
    """
    workers = topology.workers_per_node
    suitable = [node for node in nodes if capacity(node, cpus_per_worker, gpus_per_worker) >= workers]
    if len(suitable) < topology.nodes:
        need = f"{workers * cpus_per_worker} CPUs"
        need += f" and {workers * gpus_per_worker:g} GPUs" if gpus_per_worker else ""
        have = [
            f"{node.cpus:g} CPUs" + f" and {node.gpus:g} GPUs" * bool(gpus_per_worker or node.gpus) for node in nodes
        ]
        raise ValueError(
            f"{topology} needs {counted(topology.nodes, 'node')} with {need} each, but the cluster has "
            f"{counted(len(nodes), 'node')} ({', '.join(have) or 'none alive'}), {len(suitable)} of them large enough"
        )
    return [node.node_id for node in suitable[: topology.nodes] for _ in range(workers)]


def share_of_cpus(topology: Topology, nodes: Sequence[Node], gpus_per_worker: float = 0) -> int:
    """CPUs for each worker: an equal share of the smallest of the chosen ``nodes``, at least 1.

    With GPUs, it is the CPUs that belong to the worker's GPUs, so that others can use the rest of the node.
    """
    ways = (node.gpus / gpus_per_worker if gpus_per_worker else topology.workers_per_node for node in nodes)
    return max(min(int(node.cpus / way) for node, way in zip(nodes, ways, strict=True)), 1)


def copies(topology: Topology, nodes: Sequence[Node], cpus_per_worker: int, gpus_per_worker: float = 0) -> int:
    """How many runs of this topology the nodes hold at once."""
    free = sorted(capacity(node, cpus_per_worker, gpus_per_worker) // topology.workers_per_node for node in nodes)
    count = 0
    while len(free) >= topology.nodes and free[-topology.nodes] > 0:  # each takes the freest nodes
        free[-topology.nodes :] = [room - 1 for room in free[-topology.nodes :]]
        free.sort()
        count += 1
    return count


def verify(topology: Topology, node_ids: Sequence[str]) -> None:
    """Check where the workers really are: ``node_ids`` has the node of every rank.

    Raises:
        ValueError: when they are not ``workers_per_node`` on each of ``nodes`` nodes.
    """
    placed = sorted(Counter(node_ids).values())
    if placed != [topology.workers_per_node] * topology.nodes:
        counts = " + ".join(map(str, placed))
        raise ValueError(f"topology {topology} was asked for, but the workers were placed as {counts}")
