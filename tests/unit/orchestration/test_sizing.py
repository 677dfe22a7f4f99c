"""What a run asks an autoscaler for while it trains, and when an elastic one gives up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.core.generated.autoscaler_pb2 import AutoscalingState

from cifar_ray import storage
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import autoscaler, connection, preflight
from cifar_ray.orchestration.cluster.allocation import Sizing
from cifar_ray.orchestration.cluster.autoscaler import Demand
from cifar_ray.orchestration.run import attempt, segments
from cifar_ray.orchestration.run.attempt import RunFailedError
from cifar_ray.orchestration.run.events import Stopped
from cifar_ray.training import recipe
from cifar_ray.training.observer import Launch


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
    ("elastic", "brings", "topology", "standing", "asked"),
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
    elastic: str | None, brings: list[str], topology: str, standing: int, asked: str
) -> None:
    demand = Asked(brings)
    demand.now = "before"
    Sizing(lambda _: None, lambda: None, demand=demand).keep(config(topology, elastic), standing)
    assert demand.now == asked


def test_a_request_is_repeated_since_another_run_may_have_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[dict[str, float]]] = []
    monkeypatch.setattr(autoscaler, "_state", AutoscalingState)
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


class Places(Sizing):
    """A cluster with room on one node; what was said to be held is noted."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(lambda _: None, lambda: None)
        self.nodes = nodes
        self.held: list[Counter[str]] = []

    def place(self, config: TrainConfig, held: Any = None, patient: bool = False) -> tuple[TrainConfig, list[str]]:
        self.held.append(Counter(held))
        return config, [next(node for node in self.nodes if node not in self.unfit)]


def test_an_elastic_run_is_not_placed_on_a_node_found_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node(name, "127.0.0.1", 1.0, 0.0) for name in ("first", "second")]
    monkeypatch.setattr(connection, "free_nodes", lambda cpus, gpus: nodes)
    places = Sizing(lambda _: None, lambda: None, demand=Asked([]))
    assert set(places.place(config("2x1", "1x1:2x1"))[1]) == {"first", "second"}
    places.unfit.add("first")
    found, placement = places.place(config("2x1", "1x1:2x1"))
    assert (found.topology, placement) == ("1x1", ["second"])


def work(config: TrainConfig, folder: Path) -> Any:
    said: list[str] = []
    return SimpleNamespace(
        config=config,
        failures=0,
        said=said,
        view=SimpleNamespace(line=said.append),
        folder=SimpleNamespace(folder=storage.at(str(folder))),
        listen=lambda _: None,
        move=lambda _: None,
    )


def run(work: Any, places: Places) -> None:
    segments.train(work, ["first"], None, Launch(time.time(), 0.0), lambda: None, places)


def test_workers_that_are_not_placed_twice_in_a_row_end_an_elastic_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, places = work(config("1x1", "1x1:2x1"), tmp_path), Places("first")
    one.config = replace(one.config, max_failures=5)
    course = ["unplaced", "failed", "unplaced", "unplaced", "never"]

    def attempted(*_: Any) -> None:
        what = course.pop(0)
        one.failures += what == "failed"
        raise RunFailedError(what, recoverable=True)

    monkeypatch.setattr(attempt, "run", attempted)
    with pytest.raises(RunFailedError, match="unplaced"):
        run(one, places)
    assert course == ["never"]
    assert places.held == [Counter(), Counter({"first": 1}), Counter()]


@pytest.mark.parametrize("elastic", [None, "1x1:2x1"])
def test_a_move_tries_the_storage_from_nodes_that_are_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elastic: str | None
) -> None:
    one, places = work(config("1x1", elastic), tmp_path), Places("new", "first")
    tried: list[set[str]] = []
    course: list[Any] = [Stopped(3), RunFailedError("the end")]

    def attempted(_: Any, placement: list[str], *__: Any) -> Any:
        what = course.pop(0)
        if isinstance(what, Exception):
            raise what
        return what

    def asked(_: Any, __: Any, nodes: set[str]) -> dict[str, ConfigError]:
        tried.append(nodes)
        return {node: ConfigError("storage", f"must be shared; {node} does not see it") for node in nodes}

    one.stopped = lambda _: None
    monkeypatch.setattr(attempt, "run", attempted)
    monkeypatch.setattr(preflight, "problems", asked)
    with pytest.raises(RunFailedError) as ended:
        run(one, places)
    assert tried[0] == {"new"}
    if elastic:
        assert str(ended.value) == "the end"
        assert places.unfit == {"new"}
        assert one.said == ["going on without a node: --storage must be shared; new does not see it"]
        assert tried[1:] == [set()]
    else:
        assert str(ended.value) == "--storage must be shared; new does not see it"
