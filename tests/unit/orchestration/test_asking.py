"""What a run and a sweep ask of an autoscaler that brings nodes of some types, or refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.orchestration.cluster import allocation, connection, optional
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.plan import planned
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.session import SweepSession
from cifar_ray.training import recipe

WITH_GPU, WITHOUT = {"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}


class Cluster:
    """A cluster scaled to ``live``, whose autoscaler has node types with these resources, and brings ``most`` nodes.

    While it is ``slow``, it neither brings any nor refuses.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live: list[Node] = []
        self.types = [WITH_GPU]
        self.most = 9
        self.slow = False
        self.asked: list[list[dict[str, float]]] = []
        monkeypatch.setattr(allocation, "_POLL_S", 0.0)
        monkeypatch.setattr(connection, "nodes", lambda: self.live)
        monkeypatch.setattr(connection, "free_nodes", lambda held=None: self.live)
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Labels": {"ray.io/node-group": "head"}}])
        monkeypatch.setattr(optional, "refused_bundles", self._refused)
        monkeypatch.setattr(allocation, "request_resources", lambda bundles: self.asked.append(bundles))

    def _refused(self, _: float) -> list[dict[str, float]]:
        if self.slow:
            return []
        bundles = self.asked[-1] if self.asked else []
        for bundle in bundles[len(self.live) :]:
            types = [kind for kind in self.types if all(kind.get(name, 0) >= size for name, size in bundle.items())]
            if not types or len(bundles) > self.most:
                return bundles
            self.live.append(Node(str(len(self.live)), "127.0.0.1", types[0]["CPU"], types[0].get("GPU", 0.0)))
        return []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("CIFAR_RAY_START_TIMEOUT_S", "1")
    return Cluster(monkeypatch)


def config(topology: str = "2x1", **values: Any) -> ResolvedConfig:
    usual = {"dataset": "digits", "model": "simple_cnn", "global_batch_size": 64}
    return recipe.resolve(TrainConfig(**{**usual, **values}, topology=topology))


def test_auto_asks_for_cpus_and_takes_the_gpus_that_come_with_them(cluster: Cluster) -> None:
    chosen = NodeAllocator(lambda *_: None, lambda: None).allocate(config(), Decided.asked(config()))
    assert cluster.asked == [[{"CPU": 1.0}] * 2]
    assert chosen.decided.device == "cuda"


def test_gpus_are_asked_for_by_the_device(cluster: Cluster) -> None:
    cluster.types = [WITHOUT, WITH_GPU]
    asked = config(device="cuda")
    chosen = NodeAllocator(lambda *_: None, lambda: None).allocate(asked, Decided.asked(asked))
    assert cluster.asked == [[{"CPU": 1.0, "GPU": 1.0}] * 2]
    assert chosen.decided.device == "cuda"


def test_nodes_that_do_not_come_are_named_with_where_to_look(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIFAR_RAY_START_TIMEOUT_S", "0.01")
    cluster.slow = True
    with pytest.raises(RunFailedError, match=r"0.01 s: topology 2x1 needs 2 nodes.*monitor.* say why$"):
        NodeAllocator(lambda *_: None, lambda: None).allocate(config(), Decided.asked(config()))


def of_a_sweep(topologies: list[str], device: str = "auto") -> SweepSession:
    train = {"dataset": "digits", "model": "simple_cnn", "device": device}
    sweep = SweepConfig("s", ({"topology": topologies},), train=train, skip_infeasible=True)
    folder: Any = SimpleNamespace(disk=Path("/"), local=True)
    client: Any = SimpleNamespace(tracking_uri="")
    cells = planned(sweep)
    return SweepSession(sweep, folder, client, cells, [], Budget(sweep, cells), 0.0)


@pytest.mark.parametrize(("most", "nodes", "runs"), [(9, 4, 3), (3, 2, 2)])
def test_a_sweep_brings_the_nodes_of_the_largest_topology_that_the_cluster_can_have(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, most: int, nodes: int, runs: int
) -> None:
    monkeypatch.setattr("cifar_ray.orchestration.cluster.preflight.check_storage", lambda *_: None)
    monkeypatch.setattr(Preparation, "decide_arithmetic", lambda *_: None)
    cluster.most = most
    sweep = of_a_sweep(["1x1", "2x1", "4x1"], "cuda")
    sweep._fit_to_cluster(lambda: False)
    assert len(cluster.live) == nodes
    assert [cell.config is not None for cell in sweep._cells] == [index < runs for index in range(3)]
    assert cluster.asked[-1] == []  # withdrawn: each run asks for its own


def test_a_sweep_on_a_fixed_cluster_skips_what_does_not_fit(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr("cifar_ray.orchestration.cluster.preflight.check_storage", lambda *_: None)
    sweep = of_a_sweep(["2x1"])
    with pytest.raises(ConfigError, match="0 of them large enough"):
        sweep._fit_to_cluster(lambda: False)
    assert cluster.asked == []
