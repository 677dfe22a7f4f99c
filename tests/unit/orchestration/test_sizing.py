"""What a run asks an autoscaler for while it trains, and when an elastic one gives up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import ray

from cifar_ray import storage
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import autoscaler, connection, optional, preflight
from cifar_ray.orchestration.cluster.allocation import Allocation, NodeAllocator
from cifar_ray.orchestration.cluster.autoscaler import Demand
from cifar_ray.orchestration.run import attempt, segments
from cifar_ray.orchestration.run.events import Stopped
from cifar_ray.training import recipe
from cifar_ray.training.observer import Launch

NODES = [Node(name, "127.0.0.1", 1.0, 0.0) for name in ("first", "new")]


class Asked(Demand):
    """Notes the topologies that are asked for; brings those that ``brings`` has."""

    def __init__(self, brings: Sequence[str]) -> None:
        super().__init__()
        self.brings = brings
        self.now = ""

    def renew(self, wanted: Sequence[TrainConfig]) -> bool:
        self.now = next((config.topology for config in wanted if config.topology in self.brings), self.now)
        return any(config.topology in self.brings for config in wanted)

    def drop(self) -> None:
        self.now = ""


def config(topology: str, elastic: str | None = None) -> TrainConfig:
    return recipe.resolve(
        TrainConfig(dataset="digits", model="simple_cnn", topology=topology, elastic=elastic, global_batch_size=64)
    )


@pytest.mark.parametrize(
    ("elastic", "brings", "topology", "placed", "asked"),
    [
        (None, ["2x1"], "2x1", 0, "2x1"),
        (None, ["2x1"], "2x1", 1, "2x1"),
        (None, ["2x1"], "2x1", 2, ""),
        ("1x1:4x1", ["2x1", "4x1"], "1x1", 1, "4x1"),
        ("1x1:4x1", ["1x1", "2x1"], "1x1", 1, "2x1"),
        ("1x1:4x1", ["1x1", "2x1"], "2x1", 2, ""),
        ("1x1:4x1", ["1x1", "2x1"], "2x1", 0, "2x1"),
        ("1x1:4x1", ["2x1", "4x1"], "4x1", 4, ""),
    ],
)
def test_a_run_asks_for_what_it_lacks_and_not_for_what_it_has(
    elastic: str | None, brings: list[str], topology: str, placed: int, asked: str
) -> None:
    demand = Asked(brings)
    demand.now = "before"
    made = NodeAllocator(lambda *_: None, lambda: None, demand=demand)
    made.request_missing(config(topology, elastic), placed)
    assert demand.now == asked


def test_a_request_is_repeated_since_another_run_may_have_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[dict[str, float]]] = []
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Labels": {"ray.io/node-group": "worker"}}])
    monkeypatch.setattr(optional, "refused_bundles", lambda _: [])
    monkeypatch.setattr(autoscaler, "_bundles", lambda _: [{"CPU": 1.0}])
    monkeypatch.setattr(autoscaler, "request_resources", lambda bundles: sent.append(bundles))
    monkeypatch.setattr(autoscaler, "_REPEAT_S", 3600.0)
    demand = Demand()
    assert [demand.renew([config("2x1")]) for _ in range(3)] == [True] * 3
    assert sent == [[{"CPU": 1.0}]]
    monkeypatch.setattr(autoscaler, "_REPEAT_S", 0.0)
    demand.renew([config("2x1")])
    demand.drop()
    demand.drop()
    assert sent == [[{"CPU": 1.0}], [{"CPU": 1.0}], []]


class OneNode(NodeAllocator):
    """A cluster with room on one node; what was said to be held is noted."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(lambda *_: None, lambda: None)
        self.nodes = nodes
        self.held: list[Counter[str]] = []

    def allocate(self, config: TrainConfig, held: Any = None, patient: bool = False) -> Allocation:
        self.held.append(Counter(held))
        return Allocation(config, [next(node for node in self.nodes if node not in self.excluded)])


def test_an_elastic_run_does_not_use_an_excluded_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "free_nodes", lambda cpus, gpus: NODES)
    allocator = NodeAllocator(lambda *_: None, lambda: None, demand=Asked([]))
    assert set(allocator.allocate(config("2x1", "1x1:2x1")).nodes) == {"first", "new"}
    allocator.excluded.add("first")
    found = allocator.allocate(config("2x1", "1x1:2x1"))
    assert (found.config.topology, found.nodes) == ("1x1", ["new"])


def session(config: TrainConfig, folder: Path) -> Any:
    said: list[str] = []
    own: Any = SimpleNamespace(folder=storage.at(str(folder)))
    view = SimpleNamespace(line=said.append)
    return SimpleNamespace(
        config=config, failures=0, last_failure=None, said=said, view=view, folder=own, handle=lambda _: None
    )


def run(session: Any, allocator: NodeAllocator) -> None:
    chosen = Allocation(session.config, ["first"])
    segments.train(session, chosen, None, Launch(time.time(), 0.0), lambda: None, allocator)


def test_workers_that_are_not_placed_twice_in_a_row_end_an_elastic_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, allocator = session(config("1x1", "1x1:2x1"), tmp_path), OneNode("first")
    one.config = replace(one.config, max_failures=5)
    course = ["unplaced", "failed", "unplaced", "unplaced", "never"]

    def attempted(*_: Any) -> None:
        what = course.pop(0)
        one.failures += what == "failed"
        raise RunFailedError(what, recoverable=True)

    monkeypatch.setattr(attempt, "run", attempted)
    with pytest.raises(RunFailedError, match="unplaced"):
        run(one, allocator)
    assert course == ["never"]
    assert allocator.held == [Counter(), Counter({"first": 1}), Counter()]


@pytest.mark.parametrize("elastic", [None, "1x1:2x1"])
def test_a_move_tries_the_storage_from_nodes_that_are_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elastic: str | None
) -> None:
    one, allocator = session(config("1x1", elastic), tmp_path), OneNode("new", "first")
    tried: list[list[Node]] = []

    def asked(_: Any, __: Any, nodes: list[Node]) -> dict[str, ConfigError]:
        tried.append(nodes)
        return {node.node_id: ConfigError("storage", "must be shared") for node in nodes}

    monkeypatch.setattr(attempt, "run", mock.Mock(side_effect=[Stopped(3), RunFailedError("the end")]))
    monkeypatch.setattr(connection, "nodes", lambda: NODES)
    monkeypatch.setattr(preflight, "problems", asked)
    with pytest.raises(RunFailedError) as ended:
        run(one, allocator)
    if elastic:
        assert (str(ended.value), allocator.excluded) == ("the end", {"new"})
        assert one.said == ["going on without a node: --storage must be shared"]
        assert tried == [NODES[1:], []]
    else:
        assert (str(ended.value), tried) == ("--storage must be shared", [NODES[1:]])
