"""The Ray cluster of one run: join the one at ``--address``, or start one on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cifar_ray.config import imports
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import local, optional, servers
from cifar_ray.training import hardware

_GREETING_TIMEOUT_S = 20.0
_LONGEST_REASON = 300


@contextmanager
def connected(
    config: TrainConfig,
    functions: Sequence[str] = (),
    doing: Callable[[str], object] = str,
    room: Decided | None = None,
) -> Iterator[Callable[[], str]]:
    """Context manager: a connection to the Ray that ``config`` joins or starts, closed unless it was there before.

    Args:
        config: of the run, or what the runs of a sweep share.
        functions: import paths of the user's own, whose modules are sent to a cluster that is joined.
        doing: called with what is being done, once nothing is wrong with what was asked for.
        room: what a Ray that is started here has to hold; the topology of ``config`` when None.

    Yields:
        A function that names the process of a Ray started here that has ended, or returns an empty string.

    Raises:
        ConfigError: when no cluster answers at the address.
        CommandFailedError: when Ray does not start here.
    """
    head = address(config)
    if config.local_nodes > 1 and (head or ray.is_initialized()):
        which = f"RAY_ADDRESS names one to join ({head})" if head else "this process has one already"
        raise ConfigError("local_nodes", f"is for a Ray started here, and {which}")
    doing("joining Ray" if head or ray.is_initialized() else "starting Ray")
    with ExitStack() as stack:
        if ray.is_initialized():
            yield str
        elif head:
            stack.enter_context(optional.environment(servers.token_mode()))
            stack.callback(ray.shutdown)
            _join(head, config, imports.to_ship(functions), stack)
            yield str
        else:
            yield stack.enter_context(local.running(config, room or Decided.asked(config)))


def address(config: TrainConfig) -> str | None:
    """The Ray cluster to join; None when Ray is to be started here."""
    return servers.ray_head(config.address)


def nodes() -> list[Node]:
    """Live nodes that are not about to leave, most free CPUs first; among equals the driver's first."""
    free, leaving = optional.free_resources(), optional.draining_nodes()
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving]
    alive.sort(key=lambda node: (-free.get(node["NodeID"], {}).get("CPU", 0.0), node["NodeID"] != here))
    sizes = [[node["Resources"].get(kind, 0.0) for kind in ("CPU", "GPU")] for node in alive]
    return [Node(node["NodeID"], node["NodeManagerAddress"], *size) for node, size in zip(alive, sizes)]


Held = Mapping[str, tuple[float, float]]
"""Node id -> CPUs and GPUs there that the asking run holds."""


def free_nodes(held: Held | None = None) -> list[Node]:
    """As :func:`nodes`, with what is free on each, counting what the asking run holds as free."""
    free = optional.free_resources()
    found = []
    for node in nodes():
        there, (cpus, gpus) = free.get(node.node_id, {}), (held or {}).get(node.node_id, (0.0, 0.0))
        cpus, gpus = min(node.cpus, there.get("CPU", 0.0) + cpus), min(node.gpus, there.get("GPU", 0.0) + gpus)
        found.append(replace(node, cpus=cpus, gpus=gpus))
    return found


def on_node(kind: Callable[..., Any], node_id: str, **options: Any) -> Any:
    """A task, or the class of an actor, on a node, where it takes no CPU."""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=where, **options)(kind)


def shares_a_machine(config: TrainConfig, decided: Decided) -> bool:
    """Whether the workers share CPUs or one machine, so that the run's times are not those of a cluster."""
    crowded = decided.world_size * decided.cpus > hardware.allowed_cpus()
    return config.local_nodes > 1 and (crowded or decided.placement.nodes > 1)


def _join(head: str, config: TrainConfig, modules: list[ModuleType], stack: ExitStack) -> None:
    head = optional.latest_head() if head == "auto" else head
    must = f"must be that of a running Ray head; {head!r}"
    if head != "auto":
        servers.reach_chosen(head)
        answer = optional.greeting(head, _GREETING_TIMEOUT_S)
        if answer == "UNAUTHENTICATED":
            raise ConfigError("", f"the Ray cluster at {head} {servers.UNAUTHORIZED}")
        if answer != "OK":
            raise ConfigError("address", f"{must} does not answer as one")
    try:
        runtime_env = {"py_modules": modules} if modules else None
        local.init(stack, address=head, runtime_env=runtime_env, **local.quiet(config)).result()
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError("address", f"{must}: {' '.join(str(error).split())[:_LONGEST_REASON]}") from None


def choose_interface() -> None:
    """Set the network interface of gloo and NCCL, unless the environment does.

    Where the host name resolves to loopback, gloo would bind there, and peers on other hosts would wait for ever.
    """
    here = ray.util.get_node_ip_address()
    for name, entries in psutil.net_if_addrs().items():
        if here in (entry.address for entry in entries):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
