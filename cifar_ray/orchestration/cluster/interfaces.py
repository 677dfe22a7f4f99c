"""The network interface of a node's collectives."""

from __future__ import annotations

import os
import socket

import psutil
import ray

from cifar_ray.config.errors import ConfigError, one_of

_GLOO = "GLOO_SOCKET_IFNAME"


def choose() -> None:
    """Set the network interface of gloo and NCCL, unless the environment does.

    Where the host name resolves to loopback, gloo would bind there, and peers on other hosts would wait for ever.

    Raises:
        ConfigError: as :func:`check`.
    """
    check()
    if name := of_address(ray.util.get_node_ip_address()):
        os.environ.setdefault(_GLOO, name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def check() -> None:
    """Refuse a variable that names an interface which this machine does not have.

    Raises:
        ConfigError: naming the variable and the interfaces.
    """
    given = os.environ.get(_GLOO, "")
    here = [name for name, addresses in _interfaces().items() if addresses]
    if given and not set(given.split(",")) <= set(here):
        raise ConfigError(
            "", f"{_GLOO} must name a network interface of {socket.gethostname()}, {one_of(here)}, got {given!r}"
        )


def of_address(address: str) -> str:
    """The interface that has an IP address, or an empty string."""
    return next((name for name, addresses in _interfaces().items() if address in addresses), "")


def _interfaces() -> dict[str, list[str]]:
    """Name -> IP addresses of this machine's network interfaces."""
    families = (socket.AF_INET, socket.AF_INET6)
    every = psutil.net_if_addrs().items()
    return {name: [entry.address for entry in entries if entry.family in families] for name, entries in every}
