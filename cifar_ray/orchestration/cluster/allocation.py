"""Choose nodes for a run, waiting if the cluster can add them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import ray

from cifar_ray.config import topology
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.topology import Node, Topology
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.cluster import connection, optional, preflight
from cifar_ray.orchestration.cluster.autoscaler import Demand
from cifar_ray.orchestration.cluster.connection import Held
from cifar_ray.storage import Folder
from cifar_ray.training import hardware, recipe

_POLL_S = 1.0
_LOG_EVERY_S = 10.0


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


Report = Callable[[int, int, float, float], None]
"""Called while a run waits: nodes that can hold its workers, nodes needed, seconds waited, seconds at most."""


@dataclass
class NodeAllocator:
    """Context manager: chooses nodes for one run, whenever its workers start or move; afterwards none are asked for.

    Attributes:
        report: called now and then while waiting.
        check: called while waiting; what it raises ends the wait.
        log: called with a sentence on what was decided.
        excluded: ids of nodes that an elastic run does not use.
        tested: ids of nodes from which the run's storage can be used.
    """

    report: Report
    check: Callable[[], object]
    log: Callable[[str], object] = str
    excluded: set[str] = field(default_factory=set)
    tested: set[str] = field(default_factory=set)
    demand: Demand = field(default_factory=Demand)
    _requested: float = 0.0

    def __enter__(self) -> NodeAllocator:
        return self

    def __exit__(self, *_: object) -> None:
        self.demand.drop()

    def allocate(
        self, config: ResolvedConfig, asked: Decided, held: Held | None = None, patient: bool = False
    ) -> Allocation:
        """Choose topology, device and nodes; wait for nodes that an autoscaler can add.

        Args:
            config: a resolved config.
            asked: its device and CPUs per worker stay where they are decided.
            held: what workers of this run hold that have just left, or are about to.
            patient: whether to wait without an autoscaler too, since nodes may be added by hand.

        Raises:
            ConfigError: when the cluster lacks nodes and no autoscaler would add them.
            RunFailedError: when they have not come within :func:`start_timeout_s`.
        """
        begun = reported = time.monotonic()
        before = -1
        while True:
            requested = self.demand.renew(config, _wanted(config, asked))
            # While GPUs may come, CPUs that are there are not taken.
            now = replace(asked, device="cuda") if requested and self.demand.for_gpus else asked
            try:
                return choose(config, now, held, self.excluded)
            except TooSmallError as lacking:
                waited = time.monotonic() - begun
                if not (requested or patient):
                    raise lacking if not self.demand.refused else _refused(lacking) from None
                if waited >= start_timeout_s():
                    raise RunFailedError(
                        f"the nodes have not come within {start_timeout_s():g} s: {lacking}"
                        + ("; /tmp/ray/session_latest/logs/monitor.* on the head say why" if requested else "")
                        + ("; --device cpu does without GPUs" if now.device != asked.device else "")
                    ) from None
                if before < 0 and requested and asked.device == "auto" and not optional.tells_refusals():
                    self.log("asking the autoscaler for CPUs; --device cuda asks for GPUs")
                suitable, wanted = _suitable(config, now)
                if suitable != before or time.monotonic() - reported >= _LOG_EVERY_S:
                    self.report(suitable, wanted, waited, start_timeout_s())
                    before, reported = suitable, time.monotonic()
            self.check()
            time.sleep(_POLL_S)

    def again(self, folder: Folder, config: ResolvedConfig, asked: Decided, held: Held) -> Allocation:
        """Choose nodes for workers that start again, and test the storage from those that are new.

        Args:
            folder: the run's.
            config: the run's.
            asked: as of :meth:`allocate`.
            held: what the run had and may have again.

        Raises:
            RunFailedError: when no nodes come in time, or the storage cannot be used from one of them.
        """
        while True:
            try:  # no node is added to a Ray that was started here
                chosen = self.allocate(config, asked, held, patient=connection.address(config) is not None)
            except ConfigError as error:
                raise RunFailedError(f"the cluster has lost nodes: {error.as_flag()}") from None
            untested = set(chosen.nodes) - self.tested
            nodes = [node for node in connection.nodes() if node.node_id in untested] if untested else []
            try:
                problems = preflight.problems(folder, config, nodes)
            except OSError:  # the driver itself cannot reach the storage now, which says nothing about a node
                return chosen
            if not problems:
                self.tested.update(chosen.nodes)
                return chosen
            for problem in problems.values():
                if config.elastic is None:
                    raise RunFailedError(problem.as_flag())
                self.log(f"going on without a node: {problem.as_flag()}")
            self.excluded.update(problems)

    def request_missing(self, config: ResolvedConfig, decided: Decided, placed: int) -> None:
        """While so many workers of a run train, ask the autoscaler for what is missing only.

        A node with workers is not idle anyway.
        """
        if time.monotonic() - self._requested < _POLL_S:
            return
        self._requested = time.monotonic()
        least = min(placed, decided.world_size)
        larger = [wider for wider in _candidates(config, decided) if wider.world_size > least]
        with suppress(ray.exceptions.RayError):  # the head is slow to answer
            if not (larger and self.demand.renew(config, larger)):
                self.demand.drop()


def check_elastic(config: TrainConfig) -> None:
    """Refuse an elastic run without a cluster whose size can change.

    Raises:
        ConfigError: saying so.
    """
    if config.elastic is not None and connection.address(config) is None and config.local_nodes == 1:
        raise ConfigError(
            "elastic", "is for a cluster whose size can change: give --address, or --local-nodes to try it"
        )


def choose(config: ResolvedConfig, asked: Decided, held: Held | None, excluded: Collection[str] = ()) -> Allocation:
    """Choose topology, device and nodes by what the cluster has now.

    An elastic run takes the most workers that fit on nodes that are free and not ``excluded``; what it ``held`` counts
    as free.

    Raises:
        TooSmallError: naming what the cluster lacks.
        ConfigError: when the config needs another device.
    """
    totals = connection.nodes()
    free = connection.free_nodes(held)
    candidates = _candidates(config, asked)
    if config.elastic is None:
        return _first(config, candidates, totals, free, totals)
    nodes = [node for node in free if node.node_id not in excluded]
    return _first(config, candidates, nodes, nodes, totals)


def at_topology(config: ResolvedConfig, asked: Decided, nodes: Sequence[Node] | None = None) -> Allocation:
    """Choose device, nodes and CPUs for one topology, among these free nodes or those of the cluster.

    Raises:
        TooSmallError: naming what the cluster lacks.
        ConfigError: when the config needs another device.
    """
    totals = connection.nodes() if nodes is None else nodes
    return _first(config, [asked], totals, nodes, totals)


def _first(
    config: ResolvedConfig,
    candidates: Sequence[Decided],
    nodes: Sequence[Node],
    free: Sequence[Node] | None,
    totals: Sequence[Node],
) -> Allocation:
    """The first of the candidates that the nodes hold, on GPUs before CPUs; errors as of :func:`at_topology`.

    Args:
        config: of the run.
        candidates: the topologies that it may have.
        nodes: the nodes to choose from.
        free: the same with what is free on each; asked for when None.
        totals: all nodes, with what is in use on each.
    """
    wanted, unused_gpus = candidates[0].device, ""
    for device in ("cuda", "cpu") if wanted == "auto" else (wanted,):
        reasons = []
        for candidate in candidates:
            decided = replace(candidate, device=device)
            gpus_each = decided.gpus(config)
            try:
                chosen = topology.choose(decided.placement, _freest(nodes, free, gpus_each), decided.cpus, gpus_each)
                recipe.check_place(config, decided)
                cpus = decided.cpus_per_worker or _share_of_cpus(decided.placement, gpus_each, chosen, nodes, free)
                return Allocation(replace(decided, cpus_per_worker=cpus), chosen, unused_gpus)
            except ConfigError as error:
                refusal = error
                reasons.append(str(error))
            except ValueError as error:
                advice = _advice(config, decided) if device == "cpu" else _uncounted(config)
                refusal = TooSmallError("topology", str(error) + (advice and f"; {advice}"))
                in_use = topology.copies(decided.placement, totals, decided.cpus, gpus_each) > 0
                reasons.append("they are in use" if in_use else str(error))
        unused_gpus = reasons[0] if any(node.gpus for node in totals) else _uncounted(config)
    raise refusal


def _share_of_cpus(
    placement: Topology, gpus: float, chosen: list[str], totals: Sequence[Node], free: Sequence[Node] | None
) -> int:
    """CPUs of each worker, with ``gpus``, where none are given: a share of what is ``free`` on the chosen nodes.

    A node on which others leave too little counts as a whole, since the run has to wait for it anyway.
    """
    offers = {node.node_id: node for node in totals}
    for node in connection.free_nodes() if free is None else free:
        if topology.capacity(node, 1, gpus) >= placement.workers_per_node:
            offers[node.node_id] = node
    sizes = [offers[node_id] for node_id in dict.fromkeys(chosen)]
    return topology.share_of_cpus(placement, sizes, gpus)


def _advice(config: TrainConfig, decided: Decided) -> str:
    nodes = max(decided.placement.nodes, 2)
    if connection.address(config) or config.local_nodes >= nodes:
        return ""
    return f"to try it here, --local-nodes {nodes} starts that many nodes on this machine, with CPUs that it has not"


def _freest(nodes: Sequence[Node], free: Sequence[Node] | None, gpus_each: float) -> Sequence[Node]:
    """For workers with GPUs, the nodes with the most free GPUs first; else as they are, by free CPUs."""
    if not gpus_each:
        return nodes
    amounts = {node.node_id: node.gpus for node in (connection.free_nodes() if free is None else free)}
    return sorted(nodes, key=lambda node: -amounts.get(node.node_id, 0.0))


def _uncounted(config: TrainConfig) -> str:
    """Why a Ray that was started on this machine counts no GPUs although it has some; empty when it has none."""
    if connection.address(config):
        return ""
    driver = hardware.nvml()
    if driver.error:
        return f"NVIDIA's driver does not answer ({driver.error}), so Ray counts no GPU of this machine"
    return "the nodes that --local-nodes starts have no GPUs" if driver.names and config.local_nodes > 1 else ""


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


def _wanted(config: ResolvedConfig, asked: Decided) -> list[Decided]:
    """What to ask the autoscaler for, until it takes one: with ``--device auto``, GPUs before CPUs.

    Not if its refusals cannot be read: where no type of node has GPUs, they would be waited for.
    """
    candidates = _candidates(config, asked)
    with_gpus = []
    if asked.device == "auto" and optional.tells_refusals():
        for candidate in (replace(each, device="cuda") for each in candidates):
            with suppress(ConfigError):  # it cannot use them
                recipe.check_place(config, candidate)
                with_gpus.append(candidate)
    return with_gpus + candidates


def _refused(lacking: TooSmallError) -> TooSmallError:
    why = "its autoscaler cannot bring more: its node types or max_workers do not allow it"
    return TooSmallError(lacking.key, f"{lacking.problem}, and {why}")


def _suitable(config: ResolvedConfig, asked: Decided) -> tuple[int, int]:
    """How many nodes can hold workers of the run's smallest topology, and how many it needs."""
    least = _candidates(config, asked)[-1]
    wanted = least.placement
    large = [
        node
        for node in connection.nodes()
        if topology.capacity(node, least.cpus, least.gpus(config)) >= wanted.workers_per_node
    ]
    return min(len(large), wanted.nodes), wanted.nodes
