"""What a cluster's workers compute on, asked before anything is trained."""

from __future__ import annotations

from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import preflight
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.run.interrupts import connected


def ask(config: ResolvedConfig) -> tuple[str, str]:
    """Join the cluster of a training of topology 1x1; return the hardware of its worker, and ``cpu`` or ``cuda``.

    Raises:
        ConfigError: when the cluster has no room for it.
        CommandFailedError: when the node does not say.
        InterruptedRunError: on SIGINT or SIGTERM.
    """
    with (
        Console() as console,
        connected(config, console) as check,
        NodeAllocator(console.waiting, check) as allocator,
    ):
        chosen = allocator.allocate(config, Decided.asked(config))
        return preflight.hardware(chosen.nodes[0], chosen.decided.device), chosen.decided.device
