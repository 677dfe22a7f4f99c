"""Where a run's workers shall stand: at once when there is room, or when the nodes that it waits for have come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import ray

from cifar_ray.config import topology
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import duration
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.cluster.autoscaler import Demand
from cifar_ray.orchestration.run import attempt
from cifar_ray.orchestration.run.attempt import RunFailedError, TooSmallError
from cifar_ray.training import recipe

_LOOK_S = 1.0
_TELL_S = 10.0


@dataclass
class Sizing:
    """Finds places for one run, again whenever it has to go on elsewhere.

    Attributes:
        tell: is told what is waited for.
        check: called while waiting; what it raises ends it.
        unfit: ids of nodes that an elastic run passes by.
    """

    tell: Callable[[str], None]
    check: Callable[[], None]
    unfit: set[str] = field(default_factory=set)
    demand: Demand = field(default_factory=Demand)
    _kept: float = 0.0

    def place(
        self, config: TrainConfig, held: Mapping[str, int] | None = None, patient: bool = False
    ) -> tuple[TrainConfig, list[str]]:
        """Choose topology, device and nodes, waiting for nodes where somebody brings them.

        Args:
            config: a resolved config.
            held: node id -> workers of this run that have just left it, or are about to.
            patient: whether to wait even when no autoscaler was asked, since nodes may come otherwise.

        Returns:
            The config with its topology and device decided, and the node of every worker.

        Raises:
            ConfigError: when the cluster lacks nodes and nobody would bring them.
            RunFailedError: when they have not come within ``start_timeout_s`` seconds.
        """
        begun = told = time.monotonic()
        before = ""
        while True:
            coming = self.demand.renew(_ways(config))
            try:
                return decide(config, held or {}, self.unfit)
            except TooSmallError as lacking:
                waited = time.monotonic() - begun
                if not (coming or patient):
                    raise lacking if not self.demand.refused else _refused(lacking) from None
                if waited >= config.start_timeout_s:
                    raise RunFailedError(
                        f"the nodes have not come within {config.start_timeout_s:g} s (--start-timeout-s): {lacking}"
                    ) from None
                there = _there(config)
                if there != before or time.monotonic() - told >= _TELL_S:
                    limit = duration(config.start_timeout_s)
                    self.tell(f"waiting for nodes: {there}, {duration(waited)} of at most {limit}")
                    before, told = there, time.monotonic()
            self.check()
            time.sleep(_LOOK_S)

    def keep(self, config: TrainConfig, standing: int) -> None:
        """While a run trains, ask for what it lacks; not for what it has, since a node with workers is not idle.

        Args:
            config: a config with its topology decided.
            standing: how many of its workers have their places.
        """
        if time.monotonic() - self._kept < _LOOK_S:
            return
        self._kept = time.monotonic()
        lacking = [way for way in _ways(config) if way.world_size > min(standing, config.world_size)]
        with suppress(ray.exceptions.RayError):  # the head is slow to answer
            if not (lacking and self.demand.renew(lacking)):
                self.demand.drop()


@contextmanager
def sizing(tell: Callable[[str], None], check: Callable[[], None]) -> Iterator[Sizing]:
    """A run's :class:`Sizing`; at its end the cluster may shrink again."""
    found = Sizing(tell, check)
    try:
        yield found
    finally:
        found.demand.drop()


def begin(config: TrainConfig) -> TrainConfig:
    """A config before it is resolved, with the topology that its batch sizes are for.

    Raises:
        ConfigError: when an elastic run has no cluster whose size can change, or a topology beside its range.
    """
    if config.elastic is None:
        return config
    if connection.address(config) is None and config.local_nodes == 1:
        raise ConfigError(
            "elastic", "is for a cluster whose size can change: give --address, or --local-nodes to try it"
        )
    largest = str(topology.parse_range(config.elastic)[1])
    if config.topology not in (TrainConfig.topology, largest):
        raise ConfigError("topology", f"is chosen by --elastic {config.elastic}; give one of the two")
    return replace(config, topology=largest)


def decide(config: TrainConfig, held: Mapping[str, int], unfit: Collection[str] = ()) -> tuple[TrainConfig, list[str]]:
    """Topology, device and nodes by what is there now.

    An elastic run takes the most workers that there is room for now, beside what else the cluster does, on nodes that
    are not ``unfit``.

    Raises:
        TooSmallError: naming what the cluster lacks.
        ConfigError: when the config needs another device.
    """
    if config.elastic is None:
        return attempt.with_device(config)
    nodes = connection.free_nodes(
        {node: workers * config.cpus_per_worker for node, workers in held.items()},
        {node: workers * config.gpus_per_worker for node, workers in held.items()},
    )
    nodes = [node for node in nodes if node.node_id not in unfit]
    ways = _ways(config)
    for device in ("cuda", "cpu") if config.device == "auto" else (config.device,):
        for way in ways:
            try:
                return attempt.with_device(replace(way, device=device), nodes)
            except TooSmallError as error:
                lacking = error
    raise lacking


def _ways(config: TrainConfig) -> list[TrainConfig]:
    """The config at every topology that it may have, the one with the most workers first."""
    if config.elastic is None:
        return [config]
    found = []
    for wanted in topology.between(*topology.parse_range(config.elastic)):
        try:
            found.append(recipe.at(config, wanted))
        except ConfigError:  # these workers cannot share the global batch
            continue
    return found


def _refused(lacking: TooSmallError) -> TooSmallError:
    why = "its autoscaler cannot bring more: its node types or max_workers do not allow it"
    return TooSmallError(lacking.key, f"{lacking.problem}, and {why}")


def _there(config: TrainConfig) -> str:
    """How many of the nodes are there that the run needs at least."""
    least = _ways(config)[-1]
    wanted = least.placement
    large = [
        node
        for node in connection.nodes()
        if topology.capacity(node, least.cpus_per_worker, least.gpus_reserved) >= wanted.workers_per_node
    ]
    return f"{min(len(large), wanted.nodes)} of {wanted.nodes}"
