"""Ray Train's process group on the network interface that has each node's address."""

from __future__ import annotations

import os
import socket
from typing import Any

import psutil
import ray
from ray.train.torch import TorchConfig

from cifar_ray.orchestration.cluster.ray_internals import _TorchBackend


class TorchBackend(_TorchBackend):
    """Ray Train's backend; chooses the network interface first."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


class Collectives(TorchConfig):
    """``TorchConfig`` with :class:`TorchBackend`."""

    @property
    def backend_cls(self) -> type[TorchBackend]:
        return TorchBackend


def choose_interface() -> str:
    """Set the network interface of gloo and NCCL, unless the environment does.

    Where the host name resolves to loopback, gloo would bind there, and peers on other hosts would wait for ever.

    Returns:
        The interface's name, or an empty string when none has the node's address.
    """
    name = interface_of(ray.util.get_node_ip_address())
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    return name


def interface_of(address: str) -> str:
    """The interface that has an IP address, or an empty string."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address and entry.family in (socket.AF_INET, socket.AF_INET6) for entry in entries):
            return name
    return ""
