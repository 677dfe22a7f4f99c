"""``cifar-ray cluster watch``: on a node, turn its cloud's notice into a drain that Ray and the runs on it see."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import psutil
import ray

from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.cluster.metadata import Aws, Gcp, Notice, Provider
from cifar_ray.orchestration.cluster.ray_internals import (
    DrainNodeReason,
    GcsClient,
    GcsNodeInfo,
    canonicalize_bootstrap_address,
)

_EVERY_S = 2.0
_REGISTERED_S = 300.0
_ALIVE_EVERY_S = 30.0
_GCS_S = 10.0
_CLOUDS: dict[str, Callable[[str | None], Provider]] = {"aws": Aws, "gcp": Gcp}


def watch(
    provider: str | None, metadata_url: str | None, address: str | None, node_id: str | None, say: Callable[[str], None]
) -> bool:
    """Wait for the notice that this machine will be taken away, and drain its Ray node until then.

    It imports neither torch nor Ray Train, since it lives beside the workers.

    Args:
        provider: ``aws`` or ``gcp``; whichever answers when None.
        metadata_url: where the metadata service is, if not where the cloud has it.
        address: HOST:PORT of the Ray head; when None, of the Ray that runs on this machine.
        node_id: Ray's id of the node, where several run on this machine.
        say: is told what happens, in sentences.

    Returns:
        Whether all is well: the node is drained, or has left the cluster before. False when Ray refuses to drain it.

    Raises:
        ConfigError: when there is no such service, cluster or node.
    """
    if metadata_url is not None and (urlsplit(metadata_url).scheme != "http" or not urlsplit(metadata_url).netloc):
        raise ConfigError("metadata_url", f"must be an address such as http://169.254.169.254, got {metadata_url!r}")
    cloud = _cloud(provider, metadata_url.rstrip("/") if metadata_url else None)
    with connection.token():
        gcs = _connect(address)
        node = _own_node(gcs, node_id)
        say(f"watching for a notice to node {node[:8]} by {type(cloud).__name__.upper()}")
        notice = _notice(cloud, lambda: _alive(gcs, node), say)
        if notice is None:
            say(f"node {node[:8]} has left the cluster; there is nothing more to watch")
            return True
        refusal = _drain(gcs, node, notice)
    if refusal:
        say(f"{notice.reason}, and Ray does not drain node {node[:8]}: {refusal}")
        return False
    left_s = max(notice.deadline_ms / 1000 - time.time(), 0)
    say(f"{notice.reason} in {left_s:.0f} s; node {node[:8]} is drained, and runs on it go on elsewhere")
    return True


def _cloud(provider: str | None, url: str | None) -> Provider:
    names = [provider] if provider else list(_CLOUDS)
    for name in names:
        cloud = _CLOUDS[name](url)
        if cloud.answers():
            return cloud
    asked = f"the metadata service of {' or '.join(name.upper() for name in names)}"
    raise ConfigError("metadata_url" if url else "provider", f"must lead to {asked}, and none answers here")


def _connect(address: str | None) -> GcsClient:
    """A client of the cluster's head.

    Raises:
        ConfigError: when no head answers.
    """
    found = address or canonicalize_bootstrap_address(None)
    if not found:
        raise ConfigError("address", "must be HOST:PORT of a Ray head; no Ray runs on this machine")
    connection.reach(found)
    try:
        gcs = GcsClient(address=found)
        gcs.check_alive([], timeout=_GCS_S)
    except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
        raise ConfigError("address", f"must be that of a running Ray head; {found!r}: {_words(error)}") from None
    return gcs


def _own_node(gcs: GcsClient, node_id: str | None) -> str:
    """Ray's id of the node on this machine; one that is just starting is waited for."""
    addresses = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    end = time.monotonic() + _REGISTERED_S
    while True:
        there = _nodes(gcs)
        if node_id is not None:
            if node_id in there:
                return node_id
        else:
            own = [known for known, address in there.items() if address in addresses]
            if len(own) == 1:
                return own[0]
            if own:
                raise ConfigError("node_id", f"must be given, since {len(own)} nodes run on this machine: {_list(own)}")
        if time.monotonic() >= end:
            asked = "that of a live node" if node_id else "given, since no node of this cluster runs on this machine"
            raise ConfigError("node_id", f"must be {asked}; the cluster has {_list(list(there))}")
        time.sleep(_EVERY_S)


def _alive(gcs: GcsClient, node: str) -> bool:
    """Whether the node is still in its cluster, and that still there."""
    try:
        return node in _nodes(gcs)
    except ray.exceptions.RayError:
        return False


def _nodes(gcs: GcsClient) -> dict[str, str]:
    """Ray's ids of the live nodes, and their addresses."""
    return {
        info.node_id.hex(): info.node_manager_address
        for info in gcs.get_all_node_info(timeout=_GCS_S).values()
        if info.state == GcsNodeInfo.ALIVE
    }


def _notice(cloud: Provider, alive: Callable[[], bool], say: Callable[[str], None]) -> Notice | None:
    """The notice, however long it takes; None when the node has gone before."""
    trouble, looked = "", time.monotonic()
    while True:
        try:
            notice = cloud.notice()
            trouble = ""
        except OSError as error:
            if not trouble:  # once for every time that it is away
                say(f"the metadata service does not answer ({_words(error)}); it is asked again")
            notice, trouble = None, _words(error)
        if notice is not None:
            return notice
        if time.monotonic() - looked >= _ALIVE_EVERY_S:
            looked = time.monotonic()
            if not alive():
                return None
        time.sleep(_EVERY_S)


def _drain(gcs: GcsClient, node: str, notice: Notice) -> str:
    """Have no more work placed on the node, and those that watch for it told; why not, if Ray refuses."""
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    try:
        accepted, why = gcs.drain_node(node, reason, notice.reason, notice.deadline_ms)
    except ray.exceptions.RayError as error:
        return _words(error)
    return "" if accepted else why or "no reason is given"


def _list(nodes: list[str]) -> str:
    return ", ".join(nodes) or "none"


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
