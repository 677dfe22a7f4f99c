"""Which nodes a run and a sweep ask for and get, and how many CPUs each worker has there where none are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import pytest
import ray
import torch

from cifar_ray import storage
from cifar_ray.config import runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.cluster import allocation, connection, local, optional, preflight
from cifar_ray.orchestration.cluster.allocation import NodeAllocator
from cifar_ray.orchestration.sweep import preparation
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.plan import PlannedCell, planned, read, write_cells
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.session import SweepSession
from cifar_ray.runs.folder import RunFolder
from cifar_ray.strategies.worker import Worker
from cifar_ray.tracking.study import FOLDER_TAG, Sweep
from cifar_ray.training import hardware, recipe, setup
from cifar_ray.training.observer import Launch
from tests.support.cells import end


def node(cpus: float, gpus: float = 0.0, name: str = "here") -> Node:
    return Node(name, "127.0.0.1", cpus, gpus)


def config(topology: str = "1x1", **values: Any) -> ResolvedConfig:
    usual = {"dataset": "digits", "model": "simple_cnn", "topology": topology, "global_batch_size": 64}
    return recipe.resolve(TrainConfig(**{**usual, **values}))


def decided(asked: ResolvedConfig, *nodes: Node) -> Decided:
    return allocation.at_topology(asked, Decided.asked(asked), nodes).decided


def chosen(asked: ResolvedConfig, held: Any = None) -> Decided:
    return allocation.choose(asked, Decided.asked(asked), held).decided


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``cluster(nodes, free)`` makes a cluster of these nodes, of which so much is free."""

    def make(nodes: list[Node], free: list[Node] | None = None) -> None:
        monkeypatch.setattr(connection, "nodes", lambda: nodes)
        monkeypatch.setattr(connection, "free_nodes", lambda held=None: nodes if free is None else free)

    return make


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``session(sweep, cells)`` makes the driver of a sweep."""
    monkeypatch.setattr("cifar_ray.orchestration.cluster.preflight.check_storage", lambda *_: None)
    monkeypatch.setattr(Preparation, "decide_arithmetic", lambda *_: None)

    def make(sweep: SweepConfig, cells: list[PlannedCell]) -> SweepSession:
        folder: Any = SimpleNamespace(disk=Path("/"), local=True)
        client: Any = SimpleNamespace(tracking_uri="")
        return SweepSession(sweep, folder, client, cells, [], Budget(sweep, cells), 0.0)

    return make


def test_the_workers_of_a_node_share_its_cpus_and_the_smallest_node_decides(cluster: Any) -> None:
    for topology, cpus, share in (("1x2", 8, 4), ("1x3", 8, 2), ("1x2", 2, 1), ("1x1", 1, 1)):
        alike = {"topology": topology, "global_batch_size": None, "batch_size": 16}
        assert decided(config(**alike), node(cpus)).cpus_per_worker == share
        assert decided(config(**alike, cpus_per_worker=1), node(cpus)).cpus_per_worker == 1, "a given number stays"
    nodes = [node(9, name="a"), node(6, name="b"), node(2, name="c")]
    assert decided(config("2x2"), *nodes).cpus_per_worker == 3
    # With GPUs, a worker has the CPUs that belong to its own.
    assert decided(config("1x2"), node(32, gpus=8)).cpus_per_worker == 4
    assert decided(config("1x2", device="cpu"), node(32, gpus=8)).cpus_per_worker == 16
    assert decided(config("1x2"), node(2, gpus=2)).cpus_per_worker == 1
    # What others hold is left to them, unless they hold too much.
    for free, share in ((5, 2), (1, 4)):
        cluster([node(8)], [node(free)])
        assert allocation.at_topology(config("1x2"), Decided.asked(config("1x2"))).decided.cpus_per_worker == share
    # Threads do not follow the machine where bits must not.
    for given, share in ((None, 1), (2, 2)):
        asked = config("1x2", strategy="reproducible", cpus_per_worker=given)
        assert decided(asked, node(8)).cpus_per_worker == share


def test_all_workers_on_this_machine_share_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    three = {"topology": "1x3", "batch_size": 16, "global_batch_size": None, "local_nodes": 2}
    for there, values, per_node, share in (
        (8, {"topology": "1x2"}, 8, 4),
        (8, {"topology": "2x2", "local_nodes": 2}, 4, 2),
        (8, three, 4, 1),
        (1, {"topology": "2x2", "local_nodes": 2}, 2, 1),
    ):
        monkeypatch.setattr(joblib, "cpu_count", lambda there=there: there)
        asked = config(**values)
        assert local.cpus_per_node(asked, Decided.asked(asked)) == per_node
        nodes = [node(per_node, name=str(index)) for index in range(asked.local_nodes)]
        assert decided(asked, *nodes).cpus_per_worker == share


def test_a_run_shares_the_cpus_again_at_every_size_and_on_other_nodes(cluster: Any) -> None:
    asked = config("1x4", elastic="1x1:1x4")
    for free, expected in ((8, ("1x4", 2)), (3, ("1x2", 1))):
        cluster([node(8)], [node(free)])
        assert (chosen(asked).topology, chosen(asked).cpus_per_worker) == expected
    cluster([node(8, name="large")])
    fixed = chosen(config("1x4", elastic="1x1:1x4", cpus_per_worker=4))
    assert (fixed.topology, fixed.cpus_per_worker, chosen(config("1x2")).cpus_per_worker) == ("1x2", 4, 4)
    cluster([node(2, name="small")])
    assert chosen(config("1x2"), {"large": (8, 0)}).cpus_per_worker == 1
    with pytest.raises(allocation.TooSmallError):
        chosen(config("1x2", cpus_per_worker=4))


def test_a_run_that_moves_counts_what_it_still_holds_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "nodes", lambda: [node(8)])
    monkeypatch.setattr(connection.optional, "free_resources", lambda: {"here": {"CPU": 4.0}})
    assert [one.cpus for one in connection.free_nodes({"here": (4.0, 0.0)})] == [8]
    assert [one.cpus for one in connection.free_nodes()] == [4]


def test_a_run_is_continued_with_what_the_machine_has_then(tmp_path: Path) -> None:
    asked = config("1x2", run_name="run", storage=str(tmp_path))
    run, held = RunFolder.create(asked, Decided.asked(asked))
    with held:
        begun = decided(asked, node(8))
        run.write_config(asked, begun)
        again, before = recipe.resolve(run.asked()[0]), run.asked()[1]
        moved = recipe.resolve(run.asked({"topology": "1x1"})[0])
    assert (again, before) == (replace(asked, run_name=None), begun)
    assert (moved.topology, moved.global_batch_size) == ("1x1", 64)
    assert [decided(again, node(2)).cpus_per_worker, decided(moved, node(8)).cpus_per_worker] == [1, 8]
    # The record has the number that was used, and the command what was asked for.
    assert runfile.params(asked, begun)["cpus_per_worker"] == "4"
    assert "cpus_per_worker" not in runfile.params(asked, Decided.asked(asked))
    assert "cpus" not in recipe.command(asked)
    assert "--cpus-per-worker 4" in recipe.command(config("1x2", cpus_per_worker=4))


def test_without_ray_workers_share_the_cpus(monkeypatch: pytest.MonkeyPatch, digits: Dataset, tmp_path: Path) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    alone = config("1x2", strategy="local_sgd", precision="fp32", steps_per_epoch=1, epochs=1)
    for there, threads in ((8, 4), (1, 1)):
        monkeypatch.setattr(hardware, "allowed_cpus", lambda there=there: there)
        state = setup.prepare(alone, Decided.asked(alone), digits, tmp_path / str(there), Worker(), Launch(0.0, 0.0))
        assert (used[-1], state.decided.cpus_per_worker, state.config.cpus_per_worker) == (threads, threads, None)


@pytest.mark.parametrize(
    ("grid", "values", "nodes", "at_once", "shares"),
    [
        ({"topology": ["1x1"], "batch_size": [16, 32, 64, 128]}, {}, [2], 2, [1, 1, 1, 1]),
        ({"topology": ["1x1", "1x2"], "batch_size": [16, 32]}, {"max_concurrent": 1}, [8], 1, [4, 4, 4, 4]),
        ({"topology": ["1x2", "2x2"], "batch_size": [16]}, {}, [4, 6], 2, [1, 1]),
        ({"topology": ["1x1"], "cpus_per_worker": [1, 3]}, {}, [8], 2, [1, 3]),
        ({"topology": ["1x2"], "strategy": ["ddp", "reproducible"]}, {"max_concurrent": 1}, [8], 1, [4, 1]),
    ],
)
def test_the_runs_of_a_sweep_share_what_those_at_once_leave(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: Any, grid: dict[str, Any],
    values: dict[str, Any], nodes: list[int], at_once: int, shares: list[int],
) -> None:  # fmt: skip
    cluster([node(cpus, name=str(index)) for index, cpus in enumerate(nodes)])
    sweep = SweepConfig("s", (grid,), train={"dataset": "digits", "model": "simple_cnn"}, **values)
    made = session(sweep, cells := planned(sweep))
    monkeypatch.setattr(preparation, "bring_nodes", lambda *_: None)
    made._fit_to_cluster(lambda: False)
    assert made._at_once == at_once
    assert [cell.decided.cpus_per_worker for cell in cells] == shares
    # When the sweep is continued with its last run alone, this run computes as the others did, on more nodes too.
    write_cells(storage.at(str(tmp_path)), [cell.described(sweep) for cell in cells])
    (tmp_path / "sweep.yaml").write_text(sweeps.to_yaml(sweep))
    again = read(Sweep("s", [], "", "", tags={FOLDER_TAG: str(tmp_path)}))[1]
    for cell in again[:-1]:
        end(cell)
    cluster([node(64, name=str(index)) for index, _ in enumerate(nodes)])
    later = session(sweep, again)
    later._fit_to_cluster(lambda: False)
    assert (later._at_once, again[-1].decided.cpus_per_worker) == (1, shares[-1])


SILENT: Any = (lambda *_: None, lambda: None)
WITH_GPU, WITHOUT, WORKER = {"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}


class Scaled:
    """A cluster scaled to ``live``, whose autoscaler has node types with these resources, and brings ``most`` nodes.

    While it is ``slow``, it neither brings any nor refuses.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live: list[Node] = []
        self.types = [WITH_GPU]
        self.most = 9
        self.slow = False
        self.asked: list[list[dict[str, float]]] = []
        monkeypatch.setenv("CIFAR_RAY_START_TIMEOUT_S", "1")
        monkeypatch.setattr(allocation, "_POLL_S", 0.0)
        monkeypatch.setattr(connection, "nodes", lambda: self.live)
        monkeypatch.setattr(connection, "free_nodes", lambda held=None: self.live)
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Labels": {"ray.io/node-group": "head"}}])
        monkeypatch.setattr(optional, "refused_bundles", self._refused)
        monkeypatch.setattr(allocation, "request_resources", lambda bundles: self.asked.append(bundles))

    def _refused(self) -> list[dict[str, float]]:
        bundles = self.asked[-1] if self.asked and not self.slow else []
        for bundle in bundles[len(self.live) :]:
            types = [kind for kind in self.types if all(kind.get(name, 0) >= size for name, size in bundle.items())]
            if not types or len(bundles) > self.most:
                return bundles
            self.live.append(node(types[0]["CPU"], types[0].get("GPU", 0.0), str(len(self.live))))
        return []


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Scaled:
    return Scaled(monkeypatch)


def test_auto_asks_for_cpus_and_takes_the_gpus_that_come_and_cuda_asks_for_gpus(scaled: Scaled) -> None:
    for device, types, bundle in (("auto", [WITH_GPU], {"CPU": 1.0}), ("cuda", [WITHOUT, WITH_GPU], WORKER)):
        scaled.live.clear()
        scaled.types, asked = types, config("2x1", device=device)
        assert NodeAllocator(*SILENT).allocate(asked, Decided.asked(asked)).decided.device == "cuda"
        assert scaled.asked.pop() == [bundle] * 2


def test_nodes_that_do_not_come_are_named_with_where_to_look(scaled: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIFAR_RAY_START_TIMEOUT_S", "0.01")
    scaled.slow = True
    with pytest.raises(RunFailedError, match=r"0.01 s: topology 2x1 needs 2 nodes.*monitor.* say why$"):
        NodeAllocator(*SILENT).allocate(config("2x1"), Decided.asked(config("2x1")))


@pytest.mark.parametrize(("most", "nodes", "runs"), [(9, 4, 3), (3, 2, 2)])
def test_a_sweep_brings_the_nodes_of_its_largest_topology(
    scaled: Scaled, most: int, nodes: int, runs: int, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled.most = most
    monkeypatch.setattr(preflight, "gpu_problems", lambda _: [])  # the nodes are not there to be asked
    train = {"dataset": "digits", "model": "simple_cnn", "device": "cuda"}
    sweep = SweepConfig("s", ({"topology": ["1x1", "2x1", "4x1"]},), train=train, skip_infeasible=True)
    session(sweep, cells := planned(sweep))._fit_to_cluster(lambda: False)
    assert len(scaled.live) == nodes
    assert [cell.config is not None for cell in cells] == [index < runs for index in range(3)]
    assert scaled.asked[-1] == []  # withdrawn: each run asks for its own
    scaled.live.clear()
    scaled.asked.clear()
    monkeypatch.setattr(ray, "nodes", list)  # a cluster that is fixed
    with pytest.raises(ConfigError, match="0 of them large enough"):
        session(sweep, planned(sweep))._fit_to_cluster(lambda: False)
    assert scaled.asked == []


class Asked(NodeAllocator):
    """Notes the topologies that are asked for; brings those that ``brings`` has."""

    def __init__(self, brings: Sequence[str]) -> None:
        super().__init__(*SILENT)
        self.brings, self.now = brings, "before"

    def _request(self, config: TrainConfig, wanted: Sequence[Decided]) -> bool:
        self.now = next((each.topology for each in wanted if each.topology in self.brings), self.now)
        return any(each.topology in self.brings for each in wanted)

    def _drop(self) -> None:
        self.now = ""


def test_a_run_asks_for_what_it_lacks() -> None:
    for elastic, brings, topology, placed, asked in (
        (None, ["2x1"], "2x1", 1, "2x1"),
        (None, ["2x1"], "2x1", 2, ""),
        ("1x1:4x1", ["2x1", "4x1"], "1x1", 1, "4x1"),
        ("1x1:4x1", ["1x1", "2x1"], "1x1", 1, "2x1"),
        ("1x1:4x1", ["1x1", "2x1"], "2x1", 2, ""),
        ("1x1:4x1", ["1x1", "2x1"], "2x1", 0, "2x1"),
    ):
        run, made = config("1x1" if elastic else topology, elastic=elastic), Asked(brings)
        made.request_missing(run, replace(Decided.asked(run), topology=topology), placed)
        assert made.now == asked


def test_a_request_is_repeated_where_the_autoscaler_reports(scaled: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled.slow = True
    monkeypatch.setattr(allocation, "_REPEAT_S", 3600.0)
    with NodeAllocator(*SILENT) as made:
        assert [made._request(config("1x1"), [Decided("1x1")]) for _ in range(3)] == [True] * 3
        assert scaled.asked == [[{"CPU": 1.0}]]
        monkeypatch.setattr(allocation, "_REPEAT_S", 0.0)
        made._request(config("1x1"), [Decided("1x1")])
    assert scaled.asked == [[{"CPU": 1.0}]] * 2 + [[]]
    monkeypatch.setattr(optional, "refused_bundles", lambda: None)  # Ray's older one
    assert not NodeAllocator(*SILENT)._request(config("1x1"), [Decided("1x1")])
