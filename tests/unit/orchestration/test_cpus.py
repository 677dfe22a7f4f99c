"""How many CPUs each worker gets where none are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import pytest
import torch

from cifar_ray import storage
from cifar_ray.config import runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.topology import Node
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.cluster import allocation, connection, local
from cifar_ray.orchestration.sweep import preparation
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.plan import planned, read, write_cells
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


@pytest.mark.parametrize(("topology", "cpus", "share"), [("1x2", 8, 4), ("1x3", 8, 2), ("1x2", 2, 1), ("1x1", 1, 1)])
def test_the_workers_of_a_node_share_its_cpus(topology: str, cpus: int, share: int) -> None:
    alike = {"topology": topology, "global_batch_size": None, "batch_size": 16}
    assert decided(config(**alike), node(cpus)).cpus_per_worker == share
    assert decided(config(**alike, cpus_per_worker=1), node(cpus)).cpus_per_worker == 1, "a given number stays"


def test_the_smallest_node_decides_and_on_gpus_those_of_the_worker() -> None:
    nodes = [node(9, name="a"), node(6, name="b"), node(2, name="c")]
    assert decided(config("2x2"), *nodes).cpus_per_worker == 3
    assert decided(config("1x2"), node(32, gpus=8)).cpus_per_worker == 4
    assert decided(config("1x2", device="cpu"), node(32, gpus=8)).cpus_per_worker == 16
    assert decided(config("1x2"), node(2, gpus=2)).cpus_per_worker == 1


def test_what_others_hold_is_left_to_them_unless_they_hold_too_much(cluster: Any) -> None:
    for free, share in ((5, 2), (1, 4)):
        cluster([node(8)], [node(free)])
        assert allocation.at_topology(config("1x2"), Decided.asked(config("1x2"))).decided.cpus_per_worker == share


@pytest.mark.parametrize(
    ("there", "values", "per_node", "share"),
    [
        (8, {"topology": "1x2"}, 8, 4),
        (8, {"topology": "2x2", "local_nodes": 2}, 4, 2),
        (8, {"topology": "1x3", "batch_size": 16, "global_batch_size": None, "local_nodes": 2}, 4, 1),
        (1, {"topology": "2x2", "local_nodes": 2}, 2, 1),
    ],
)
def test_all_workers_on_this_machine_share_the_cpus_it_may_use(
    monkeypatch: pytest.MonkeyPatch, there: int, values: dict[str, Any], per_node: int, share: int
) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: there)
    asked = config(**values)
    assert local.cpus_per_node(asked, Decided.asked(asked)) == per_node
    nodes = [node(per_node, name=str(index)) for index in range(asked.local_nodes)]
    assert decided(asked, *nodes).cpus_per_worker == share


def test_an_elastic_run_shares_the_cpus_again_at_every_size(cluster: Any) -> None:
    asked = config("1x4", elastic="1x1:1x4")
    cluster([node(8)])
    assert (chosen(asked).topology, chosen(asked).cpus_per_worker) == ("1x4", 2)
    cluster([node(8)], [node(3)])
    assert (chosen(asked).topology, chosen(asked).cpus_per_worker) == ("1x2", 1)
    cluster([node(8)], [node(8)])
    fixed = chosen(config("1x4", elastic="1x1:1x4", cpus_per_worker=4))
    assert (fixed.topology, fixed.cpus_per_worker) == ("1x2", 4)


def test_a_run_that_moves_to_other_nodes_shares_theirs(cluster: Any) -> None:
    cluster([node(8, name="large")])
    assert chosen(config("1x2")).cpus_per_worker == 4
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
        assert (again, before) == (replace(asked, run_name=None), begun)
        assert decided(again, node(2)).cpus_per_worker == 1
        moved = recipe.resolve(run.asked({"topology": "1x1"})[0])
        assert (moved.topology, moved.global_batch_size) == ("1x1", 64)
        assert decided(moved, node(8)).cpus_per_worker == 8


def test_the_record_has_the_number_that_was_used_and_the_command_what_was_asked_for() -> None:
    asked = config("1x2")
    assert runfile.params(asked, decided(asked, node(8)))["cpus_per_worker"] == "4"
    assert "cpus_per_worker" not in runfile.params(asked, Decided.asked(asked))
    assert "cpus" not in recipe.command(asked)
    assert "--cpus-per-worker 4" in recipe.command(config("1x2", cpus_per_worker=4))


def test_threads_do_not_follow_the_machine_where_bits_must_not() -> None:
    assert decided(config("1x2", strategy="reproducible"), node(8)).cpus_per_worker == 1
    assert decided(config("1x2", strategy="reproducible", cpus_per_worker=2), node(8)).cpus_per_worker == 2


def test_without_ray_the_workers_of_this_machine_share_its_cpus(
    monkeypatch: pytest.MonkeyPatch, digits: Dataset, tmp_path: Path
) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    alone = config("1x2", strategy="local_sgd", precision="fp32", steps_per_epoch=1, epochs=1)
    for there, threads in ((8, 4), (1, 1)):
        monkeypatch.setattr(hardware, "allowed_cpus", lambda there=there: there)
        state = setup.prepare(alone, Decided.asked(alone), digits, tmp_path, Worker(0, 1, 0, ""), Launch(0.0, 0.0))
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
    cluster: Any,
    tmp_path: Path,
    grid: dict[str, Any],
    values: dict[str, Any],
    nodes: list[int],
    at_once: int,
    shares: list[int],
) -> None:
    cluster([node(cpus, name=str(index)) for index, cpus in enumerate(nodes)])
    sweep = SweepConfig("s", (grid,), train={"dataset": "digits", "model": "simple_cnn"}, **values)
    cells = planned(sweep)
    folder: Any = SimpleNamespace(disk=Path("/"), local=True)
    client: Any = SimpleNamespace(tracking_uri="")
    made = SweepSession(sweep, folder, client, cells, [], Budget(sweep, cells), 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cifar_ray.orchestration.cluster.preflight.check_storage", lambda *_: None)
        patch.setattr(preparation, "bring_nodes", lambda *_: None)
        patch.setattr(Preparation, "decide_arithmetic", lambda *_: None)
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
        later = SweepSession(sweep, folder, client, again, [], Budget(sweep, again), 0.0)
        later._fit_to_cluster(lambda: False)
        assert later._at_once == 1
        assert again[-1].decided.cpus_per_worker == shares[-1]
