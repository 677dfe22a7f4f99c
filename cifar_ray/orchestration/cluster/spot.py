"""``cifar-ray cluster watch``: ask a cloud whether it is about to take this machine, and drain its Ray node in time.

It imports neither torch nor Ray Train, since it runs beside the workers.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http.client import HTTPException

import psutil
import ray

from cifar_ray.config import servers
from cifar_ray.config.errors import ConfigError
from cifar_ray.orchestration.cluster import connection
from cifar_ray.orchestration.cluster.ray_internals import (
    DrainNodeReason,
    GcsClient,
    GcsNodeInfo,
    canonicalize_bootstrap_address,
)

_EVERY_S = 2.0
_ASK_S = 2.0
_GCS_S = 10.0
_ALIVE_EVERY_S = 30.0
_GCP_LEFT_MS = 30_000
# The metadata service is on the machine's own link, never behind a proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Notice:
    """This machine will be taken away.

    Attributes:
        deadline_ms: when, in ms since 1970.
        reason: in the cloud's words.
    """

    deadline_ms: int
    reason: str


def aws(url: str) -> Notice | None:
    """Ask EC2 by IMDSv2; a notice comes two minutes ahead. A rebalance recommendation is no notice.

    Raises:
        OSError: the service does not answer as documented.
    """
    token, _ = _ask(f"{url}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    try:
        body, _ = _ask(f"{url}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    try:
        action = json.loads(body)
        deadline = datetime.fromisoformat(action["time"].replace("Z", "+00:00"))
        return Notice(int(deadline.timestamp() * 1000), f"AWS will {action['action']} this spot instance")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OSError(f"instance-action is {body[:100]!r}") from None


def gcp(url: str) -> Notice | None:
    """Ask Compute Engine; a notice comes 30 s ahead.

    Raises:
        OSError: the service does not answer as documented.
    """
    body, headers = _ask(f"{url}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    if headers.get("Metadata-Flavor") != "Google" or body not in ("TRUE", "FALSE"):
        raise OSError(f"instance/preempted is {body[:100]!r}")
    now_ms = time.time_ns() // 1_000_000
    return Notice(now_ms + _GCP_LEFT_MS, "Google Cloud preempts this instance") if body == "TRUE" else None


CLOUDS: dict[str, tuple[str, Callable[[str], Notice | None]]] = {
    "aws": ("http://169.254.169.254", aws),
    "gcp": ("http://metadata.google.internal", gcp),
}
"""Name -> address of the metadata service, and how to ask it."""


def watch(
    provider: str | None, metadata_url: str | None, address: str | None, node_id: str | None, say: Callable[[str], None]
) -> bool:
    """Wait for a notice, then drain the Ray node of this machine until its deadline.

    Args:
        provider: a key of :data:`CLOUDS`; the one that answers when None.
        metadata_url: address of the metadata service, if not the cloud's usual one.
        address: HOST:PORT of the Ray head; that of the Ray on this machine when None.
        node_id: Ray's id of the node, where several run on this machine.
        say: is called with sentences on what happens.

    Returns:
        True once the node is drained or has left the cluster; False when Ray refuses to drain it.

    Raises:
        ConfigError: there is no such service, cluster or node.
    """
    name, ask = _cloud(provider, metadata_url)
    with connection.token():
        gcs = _connect(address)
        node = _own_node(gcs, node_id)
        say(f"watching for a notice to node {node[:8]} by {name.upper()}")
        notice = _notice(ask, gcs, node, say)
        if notice is None:
            say(f"node {node[:8]} has left the cluster; there is nothing more to watch")
            return True
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        try:
            accepted, refusal = gcs.drain_node(node, reason, notice.reason, notice.deadline_ms)
        except ray.exceptions.RayError as error:
            accepted, refusal = False, _words(error)
    if not accepted:
        say(f"{notice.reason}, and Ray does not drain node {node[:8]}: {refusal or 'it gives no reason'}")
        return False
    left_s = max(notice.deadline_ms / 1000 - time.time(), 0)
    say(f"{notice.reason} in {left_s:.0f} s; node {node[:8]} is drained, and runs on it move elsewhere")
    return True


def _cloud(provider: str | None, url: str | None) -> tuple[str, Callable[[], Notice | None]]:
    """The cloud whose metadata service answers, and how to ask it."""
    if url is not None and not re.fullmatch(r"http://[^/\s]+/?", url):
        raise ConfigError("metadata_url", f"must be an address such as http://169.254.169.254, got {url!r}")
    names = [provider] if provider else list(CLOUDS)
    for name in names:
        usual, ask = CLOUDS[name]
        where = (url or usual).rstrip("/")
        try:
            ask(where)
        except OSError:
            continue
        return name, partial(ask, where)
    asked = f"the metadata service of {' or '.join(name.upper() for name in names)}"
    raise ConfigError("metadata_url" if url else "provider", f"must lead to {asked}, and none answers here")


def _notice(ask: Callable[[], Notice | None], gcs: GcsClient, node: str, say: Callable[[str], None]) -> Notice | None:
    """Wait for the notice; None when the node has left the cluster first."""
    away, looked = False, time.monotonic()
    while True:
        try:
            if notice := ask():
                return notice
            away = False
        except OSError as error:
            if not away:  # say it once each time
                say(f"the metadata service does not answer ({_words(error)}); it is asked again")
            away = True
        if time.monotonic() - looked >= _ALIVE_EVERY_S:
            looked = time.monotonic()
            try:
                if node not in _nodes(gcs):
                    return None
            except ray.exceptions.RayError:  # the whole cluster has gone
                return None
        time.sleep(_EVERY_S)


def _connect(address: str | None) -> GcsClient:
    """A client of the cluster's head."""
    found = address or canonicalize_bootstrap_address(None)
    if not found:
        raise ConfigError("address", "must be HOST:PORT of a Ray head; no Ray runs on this machine")
    servers.reach(found)
    try:
        gcs = GcsClient(address=found)
        gcs.check_alive([], timeout=_GCS_S)
    except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
        raise ConfigError("address", f"must be that of a running Ray head; {found!r}: {_words(error)}") from None
    return gcs


def _own_node(gcs: GcsClient, node_id: str | None) -> str:
    """Ray's id of the node on this machine."""
    addresses = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    nodes = _nodes(gcs)
    own = [node for node, address in nodes.items() if node == node_id or (not node_id and address in addresses)]
    if len(own) == 1:
        return own[0]
    if own:
        raise ConfigError("node_id", f"must be given, since {len(own)} nodes run on this machine: {', '.join(own)}")
    wanted = "that of a live node" if node_id else "given, since no node of this cluster runs on this machine"
    raise ConfigError("node_id", f"must be {wanted}; the cluster has {', '.join(nodes) or 'none'}")


def _nodes(gcs: GcsClient) -> dict[str, str]:
    """Ray's ids of the live nodes -> their addresses."""
    found = gcs.get_all_node_info(timeout=_GCS_S).values()
    return {info.node_id.hex(): info.node_manager_address for info in found if info.state == GcsNodeInfo.ALIVE}


def _ask(url: str, headers: Mapping[str, str], method: str = "GET") -> tuple[str, Mapping[str, str]]:
    """Body and headers of an answer; ``OSError`` without one, ``HTTPError`` for a status of 400 or more."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310  http:// only
    try:
        with _OPENER.open(request, timeout=_ASK_S) as answer:
            return answer.read().decode(errors="replace").strip(), answer.headers
    except HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from None


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
