"""Choose nodes for a run, waiting if the cluster can add them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import ray
from ray.autoscaler.sdk import request_resources
from ray.util.placement_group import PlacementGroup, remove_placement_group

from cifar_ray.config import topology
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.cluster import connection, optional
from cifar_ray.orchestration.cluster.connection import Held
from cifar_ray.training import recipe

_POLL_S = 1.0
_REPEAT_S = 10.0
_NODE_TYPE = "ray.io/node-group"  # a label of nodes that Ray's launcher or KubeRay has started


def start_timeout_s() -> float:
    """Seconds to wait for nodes, and then for room for the workers, before a run fails.

    A GPU machine in a cloud takes 3 to 10 minutes from the request to its first worker; tests wait less.
    """
    return float(os.environ.get("CIFAR_RAY_START_TIMEOUT_S", "900"))


class TooSmallError(ConfigError):
    """The cluster's nodes do not hold the topology."""


@dataclass(frozen=True)
class Allocation:
    """Where a run trains.

    Attributes:
        decided: with the run's topology, device and CPUs.
        nodes: Ray's node id of every worker, by rank.
        unused_gpus: why ``--device auto`` has chosen CPUs although there are GPUs; empty when it has not.
    """

    decided: Decided
    nodes: list[str]
    unused_gpus: str = ""


@dataclass
class NodeAllocator:
    """Context manager: chooses nodes for one run, whenever its workers start or move; afterwards none are asked for.

    The cluster keeps one request to its autoscaler, the latest of any run, even when its driver is killed. So a request
    is repeated while it is needed, and dropped as soon as it is not.

    Attributes:
        report: called while waiting, with nodes that can hold the workers, nodes needed, seconds waited and at most.
        check: called while waiting; what it raises ends the wait.
    """

    report: Callable[[int, int, float, float], None]
    check: Callable[[], object]
    _bundles: list[dict[str, float]] = field(default_factory=list)
    _sent: float = 0.0
    _refused: list[list[dict[str, float]]] = field(default_factory=list)

    def __enter__(self) -> NodeAllocator:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def allocate(self, config: ResolvedConfig, asked: Decided, held: Held | None = None) -> Allocation:
        """Choose topology, device and nodes; wait for nodes that an autoscaler can add.

        Args:
            config: a resolved config.
            asked: its device and CPUs per worker stay where they are decided.
            held: what workers of this run hold that have just left, or are about to. Then a run waits without an
                autoscaler, too, where nodes may be added by hand: not to a Ray that was started here.

        Raises:
            ConfigError: when the cluster lacks nodes and no autoscaler would add them.
            RunFailedError: when they have not come within :func:`start_timeout_s`.
        """
        begun, patient = time.monotonic(), held is not None and connection.address(config) is not None
        while True:
            requested = self._request(config, _candidates(config, asked))
            try:
                return choose(config, asked, held)
            except TooSmallError as lacking:
                if not (requested or patient):
                    why = "its autoscaler cannot bring more: its node types or max_workers do not allow it"
                    raise TooSmallError("topology", lacking.problem + f", and {why}" * bool(self._refused)) from None
                waited = time.monotonic() - begun
                if waited >= start_timeout_s():
                    late = f"the nodes have not come within {start_timeout_s():g} s: {lacking}"
                    logs = "; /tmp/ray/session_latest/logs/monitor.* on the head say why" * requested
                    raise RunFailedError(late + logs) from None
            self.report(*_suitable(config, asked), waited, start_timeout_s())
            self.check()
            time.sleep(_POLL_S)

    def request_missing(self, config: ResolvedConfig, decided: Decided, placed: int) -> None:
        """While so many workers train, ask for what is missing only: a node with workers is not idle anyway."""
        least = min(placed, decided.world_size)
        larger = [wider for wider in _candidates(config, decided) if wider.world_size > least]
        with suppress(ray.exceptions.RayError):  # the head is slow to answer
            if not (larger and self._request(config, larger)):
                self._drop()

    def _request(self, config: TrainConfig, wanted: Sequence[Decided]) -> bool:
        """Ask for the nodes of the first topology that an autoscaler has not refused; whether there is one."""
        if not any(node["Alive"] and node["Labels"].get(_NODE_TYPE) for node in ray.nodes()):
            return False  # each head runs a monitor, but nothing starts nodes where they were started by hand
        refused = optional.refused_bundles()
        if refused is None:
            return False
        if self._bundles and refused == self._bundles:
            self._refused.append(self._bundles)
        for decided in wanted:
            bundles = _bundles(config, decided)
            if bundles in self._refused:
                continue
            if bundles != self._bundles or time.monotonic() - self._sent >= _REPEAT_S:
                request_resources(bundles=bundles)
                self._bundles, self._sent = bundles, time.monotonic()
            return True
        return False

    def _drop(self) -> None:
        """Withdraw the request, so that idle nodes can be removed."""
        if self._bundles:
            with suppress(ray.exceptions.RayError):  # the cluster is gone, and the request with it
                request_resources(bundles=[])
            self._bundles = []


def _bundles(config: TrainConfig, decided: Decided) -> list[dict[str, float]]:
    """The request for a topology: bundles of the size of a node's workers.

    Ray packs bundles onto nodes as it likes; none can ask for a node of its own. So there are as many as the nodes of
    the cluster hold, and one more for each node that is missing.
    """
    wanted, gpus = decided.placement, decided.gpus(config)
    bundle = {"CPU": float(wanted.workers_per_node * decided.cpus)}
    if gpus:
        bundle["GPU"] = float(wanted.workers_per_node * gpus)
    rooms = [topology.capacity(node, decided.cpus, gpus) // wanted.workers_per_node for node in connection.nodes()]
    missing = wanted.nodes - sum(room > 0 for room in rooms)
    held = sum(rooms) if missing > 0 else wanted.nodes
    return [bundle] * (held + max(missing, 0))


def choose(config: ResolvedConfig, asked: Decided, held: Held | None) -> Allocation:
    """Choose topology, device and nodes now: an elastic run has the most workers that fit on what is free or ``held``.

    Raises:
        TooSmallError: naming what the cluster lacks.
        ConfigError: when the config needs another device.
    """
    return _first(config, _candidates(config, asked), connection.nodes(), connection.free_nodes(held))


def at_topology(config: ResolvedConfig, asked: Decided, nodes: Sequence[Node] | None = None) -> Allocation:
    """Choose device, nodes and CPUs for one topology, among these free nodes or those of the cluster; errors alike."""
    if nodes is None:
        return _first(config, [asked], connection.nodes(), connection.free_nodes())
    return _first(config, [asked], nodes, nodes)


def _first(
    config: ResolvedConfig, candidates: Sequence[Decided], totals: Sequence[Node], free: Sequence[Node]
) -> Allocation:
    """The first of the candidates that the nodes hold, on GPUs before CPUs; ``free`` is what is free on each."""
    refusals: list[ConfigError] = []
    nodes = totals if config.elastic is None else free  # an elastic run does not wait for what others use
    wanted = candidates[0].device
    for device in ("cuda", "cpu") if wanted == "auto" else (wanted,):
        unused_gpus = str(refusals[0]) if refusals and any(node.gpus for node in totals) else ""
        for candidate in candidates:
            try:
                return Allocation(*_place(config, replace(candidate, device=device), nodes, free), unused_gpus)
            except ConfigError as error:
                refusals.append(error)
    raise refusals[-1]


def _place(
    config: ResolvedConfig, decided: Decided, nodes: Sequence[Node], free: Sequence[Node]
) -> tuple[Decided, list[str]]:
    """How many CPUs each worker has, and the node of each: those with the most free GPUs first, if it needs any."""
    placement, gpus = decided.placement, decided.gpus(config)
    room = {node.node_id: node for node in (*nodes, *free)}
    if gpus:
        nodes = sorted(nodes, key=lambda node: -room[node.node_id].gpus)
    try:
        chosen = topology.choose(placement, nodes, decided.cpus, gpus)
    except ValueError as error:
        raise TooSmallError("topology", f"{error}{_advice(config, decided)}") from None
    recipe.check_place(config, decided)
    if decided.cpus_per_worker is None:
        for node in nodes:  # a share of what is free, or of all where the run has to wait for others anyway
            if topology.capacity(room[node.node_id], 1, gpus) < placement.workers_per_node:
                room[node.node_id] = node
        sizes = [room[node_id] for node_id in dict.fromkeys(chosen)]
        decided = replace(decided, cpus_per_worker=topology.share_of_cpus(placement, sizes, gpus))
    return decided, chosen


def _advice(config: TrainConfig, decided: Decided) -> str:
    nodes = max(decided.placement.nodes, 2)
    if connection.address(config) or config.local_nodes >= nodes or decided.device == "cuda":
        return "; --device auto takes CPUs where GPUs do not suffice" * (config.device == "cuda")
    return f"; to try it here, --local-nodes {nodes} starts that many nodes on this machine, with CPUs that it has not"


def _candidates(config: ResolvedConfig, asked: Decided) -> list[Decided]:
    """What is asked at each topology that the run may have, most workers first."""
    if config.elastic is None:
        return [asked]
    candidates = []
    for wanted in topology.between(*topology.parse_range(config.elastic)):
        candidate = replace(asked, topology=str(wanted))
        with suppress(ConfigError):  # these workers cannot share the global batch
            recipe.check_place(config, candidate)
            candidates.append(candidate)
    return candidates


def _suitable(config: ResolvedConfig, asked: Decided) -> tuple[int, int]:
    """How many nodes can hold workers of the run's smallest topology, and how many it needs."""
    least = _candidates(config, asked)[-1]
    wanted, size = least.placement, (least.cpus, least.gpus(config))
    large = sum(topology.capacity(node, *size) >= wanted.workers_per_node for node in connection.nodes())
    return min(large, wanted.nodes), wanted.nodes


def remove_abandoned() -> None:
    """Remove placement groups whose creator has died: Ray keeps them, and gives them the next room there is."""
    for group in optional.abandoned_groups():
        remove_placement_group(PlacementGroup(group))


def holders(resource: str) -> str:
    """How much of a resource of the cluster is in use, as ``2 of 3 CPUs are in use``."""
    total = ray.cluster_resources().get(resource, 0.0)
    held = total - ray.available_resources().get(resource, 0.0)
    return f"{held:g} of {total:g} {resource}s are in use"
