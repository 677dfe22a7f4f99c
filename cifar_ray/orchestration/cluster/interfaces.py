"""The network interface of a node's collectives."""

from __future__ import annotations

import os

import psutil
import ray


def choose() -> None:
    """Set the network interface of gloo and NCCL, unless the environment does.

    Where the host name resolves to loopback, gloo would bind there, and peers on other hosts would wait for ever.
    """
    here = ray.util.get_node_ip_address()
    for name, entries in psutil.net_if_addrs().items():
        if here in (entry.address for entry in entries):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
