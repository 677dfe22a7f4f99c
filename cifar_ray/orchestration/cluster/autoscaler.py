"""Ask the cluster's autoscaler for the nodes of a run, and withdraw the request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import ray
from ray.autoscaler.sdk import request_resources

from cifar_ray.config import topology
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import connection, optional

_ANSWER_S = 10
_REPEAT_S = 10.0
_NODE_TYPE = "ray.io/node-group"  # a label of nodes that Ray's launcher or KubeRay has started


class Demand:
    """A run's request to the autoscaler.

    The cluster keeps one request, the latest of any run, even when its driver is killed. So a request is repeated while
    it is needed, and dropped as soon as it is not.

    Ray packs the bundles of a request onto nodes as it likes; none can ask for a node of its own. So a request has as
    many bundles as the nodes of the cluster hold, and one more for each node that is missing.
    """

    def __init__(self) -> None:
        self._bundles: list[dict[str, float]] = []
        self._sent = 0.0
        self._refused: list[list[dict[str, float]]] = []

    def renew(self, config: TrainConfig, wanted: Sequence[Decided]) -> bool:
        """Ask for the nodes of the first of several topologies and devices that the autoscaler has not refused.

        Returns:
            Whether there is an autoscaler that has not refused all of them.
        """
        if not any(node["Alive"] and node["Labels"].get(_NODE_TYPE) for node in ray.nodes()):
            return False  # each head runs a monitor, but nothing starts nodes where they were started by hand
        refused = optional.refused_bundles(_ANSWER_S)
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

    @property
    def refused(self) -> bool:
        """Whether the autoscaler has refused a request, as its node types do not allow it."""
        return bool(self._refused)

    def drop(self) -> None:
        """Withdraw the request, so that idle nodes can be removed."""
        if self._bundles:
            with suppress(ray.exceptions.RayError):  # the cluster is gone, and the request with it
                request_resources(bundles=[])
            self._bundles = []


def _bundles(config: TrainConfig, decided: Decided) -> list[dict[str, float]]:
    """The request for a topology: bundles of the size of a node's workers; see :class:`Demand`."""
    wanted, gpus = decided.placement, decided.gpus(config)
    bundle = {"CPU": float(wanted.workers_per_node * decided.cpus)}
    if gpus:
        bundle["GPU"] = float(wanted.workers_per_node * gpus)
    rooms = [topology.capacity(node, decided.cpus, gpus) // wanted.workers_per_node for node in connection.nodes()]
    missing = wanted.nodes - sum(room > 0 for room in rooms)
    held = sum(rooms) if missing > 0 else wanted.nodes
    return [bundle] * (held + max(missing, 0))
