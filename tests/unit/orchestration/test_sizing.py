"""What a run asks an autoscaler for while it trains, and on which nodes it starts again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from cifar_ray import storage
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import RunFailedError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import allocation, connection, optional
from cifar_ray.orchestration.cluster.allocation import Allocation, NodeAllocator
from cifar_ray.orchestration.run import attempt, failures
from cifar_ray.orchestration.run.attempt import Failed, NotPlaced
from cifar_ray.orchestration.run.events import Mailbox, Moved, NoRoom, Placed, Stopped, WorkersFailed
from cifar_ray.orchestration.run.limits import Meter, Spent
from cifar_ray.orchestration.run.restarts import Run
from cifar_ray.orchestration.run.workers import Attempt
from cifar_ray.training import recipe
from cifar_ray.training.observer import Launch, Started

NODES = [Node(name, "127.0.0.1", 1.0, 0.0) for name in ("first", "new")]


class Asked(NodeAllocator):
    """Notes the topologies that are asked for; brings those that ``brings`` has."""

    def __init__(self, brings: Sequence[str] = ()) -> None:
        super().__init__(lambda *_: None, lambda: None)
        self.brings = brings
        self.now = "before"

    def _request(self, config: TrainConfig, wanted: Sequence[Decided]) -> bool:
        self.now = next((each.topology for each in wanted if each.topology in self.brings), self.now)
        return any(each.topology in self.brings for each in wanted)

    def _drop(self) -> None:
        self.now = ""


def config(topology: str, elastic: str | None = None) -> TrainConfig:
    return recipe.resolve(
        TrainConfig(
            dataset="digits",
            model="simple_cnn",
            topology="1x1" if elastic else topology,
            elastic=elastic,
            global_batch_size=64,
        )
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
    allocator = Asked(brings)
    run = config(topology, elastic)
    allocator.request_missing(run, replace(Decided.asked(run), topology=topology), placed)
    assert allocator.now == asked


def test_a_request_is_repeated_since_another_run_may_have_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[dict[str, float]]] = []
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Labels": {"ray.io/node-group": "worker"}}])
    monkeypatch.setattr(optional, "refused_bundles", lambda _: [])
    monkeypatch.setattr(allocation, "_bundles", lambda *_: [{"CPU": 1.0}])
    monkeypatch.setattr(allocation, "request_resources", lambda bundles: sent.append(bundles))
    monkeypatch.setattr(allocation, "_REPEAT_S", 3600.0)
    with NodeAllocator(lambda *_: None, lambda: None) as allocator:
        assert [allocator._request(config("2x1"), [Decided("2x1")]) for _ in range(3)] == [True] * 3
        assert sent == [[{"CPU": 1.0}]]
        monkeypatch.setattr(allocation, "_REPEAT_S", 0.0)
        allocator._request(config("2x1"), [Decided("2x1")])
    assert sent == [[{"CPU": 1.0}], [{"CPU": 1.0}], []]


def test_nothing_is_asked_of_a_cluster_whose_autoscaler_never_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's older one, under which nodes have the same labels."""
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Labels": {"ray.io/node-group": "worker"}}])
    monkeypatch.setattr(optional, "refused_bundles", lambda _: None)
    assert not NodeAllocator(lambda *_: None, lambda: None)._request(config("2x1"), [Decided("2x1")])


class OneNode(NodeAllocator):
    """A cluster with room on one node; what was said to be held is noted."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(lambda *_: None, lambda: None)
        self.nodes = nodes
        self.held: list[dict[str, Any]] = []

    def allocate(self, config: TrainConfig, asked: Decided, held: Any = None) -> Allocation:
        self.held.append(dict(held))
        return Allocation(asked, [self.nodes[0]])


def ended_by(course: list[Any]) -> Any:
    """In place of an attempt: what each one ends with, or raises."""

    def run(one: Attempt, handle: Any, check: Any) -> Any:
        ended = course.pop(0)
        if isinstance(ended, list):
            for event in ended[:-1]:
                handle(event)
            ended = ended[-1]
        if isinstance(ended, Exception):
            raise ended
        return ended

    return run


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the attempts of a run end with."""
    made: list[Any] = []
    monkeypatch.setattr(attempt, "run", ended_by(made))
    return made


def run(config: TrainConfig, allocator: NodeAllocator, folder: Path) -> list[Any]:
    """The events of a run that ends with an error; the last is the error."""
    seen: list[Any] = []

    def note(event: Any) -> None:
        if not isinstance(event, Spent):
            seen.append(event)

    home = storage.at(str(folder))
    one = Run(config, None, home, None, note, lambda *_: False, allocator, Mailbox(None), Meter(home), lambda _: "")
    try:
        one.train(
            Allocation(replace(Decided.asked(config), device="cpu", cpus_per_worker=1), ["first"]),
            Launch(time.time(), 0.0),
        )
    except RunFailedError as error:
        return [*seen, str(error)]
    raise AssertionError("the course has no end")


PLACED = Placed(0, "first", "127.0.0.1", "host", 1, 1, "cpu", "lo")
DIED = Failed({0: failures.DIED}, {})


def test_a_start_again_goes_on_with_what_was_measured(course: list[Any], tmp_path: Path) -> None:
    asked = config("1x1")
    measured = replace(Decided.asked(asked), device="cpu", precision="bf16", convolutions="contiguous")
    course += [[Started(measured, 0, 10), DIED], RunFailedError("the end")]
    *_, moved, end = run(asked, OneNode("first"), tmp_path)
    assert asked.precision == "auto"
    assert (moved.decided.precision, moved.decided.convolutions, end) == ("bf16", "contiguous", "the end")


def test_what_an_earlier_attempt_had_counts_as_free(course: list[Any], tmp_path: Path) -> None:
    course += [[PLACED, DIED], NotPlaced(), Stopped(4), RunFailedError("the end")]
    allocator = OneNode("first")
    seen = run(config("1x1", "1x1:2x1"), allocator, tmp_path)
    assert allocator.held == [{"first": (1, 0)}, {}, {}]
    assert [type(event) for event in seen] == [Placed, WorkersFailed, Moved, NoRoom, Stopped, Moved, str]


def test_a_cluster_that_has_lost_its_nodes_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, course: list[Any], tmp_path: Path
) -> None:
    course += [DIED]
    monkeypatch.setattr(connection, "free_nodes", lambda *_: NODES[:1])
    monkeypatch.setattr(connection, "nodes", lambda: NODES[:1])
    allocator = Asked()
    assert run(config("2x1"), allocator, tmp_path)[-1].startswith("the cluster has lost nodes: --topology ")
