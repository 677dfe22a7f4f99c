"""Runs out of the store: which there are, and where a table places a cell that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import DEFAULT_GLOBAL_BATCH, TrainConfig
from cifar_ray.tracking import parent, reading, store
from tests.support.tracked import Store

RESNET = {"model": "resnet", "dataset": "digits"}
USUAL = {"model": TrainConfig().model, "dataset": TrainConfig().dataset}


def test_a_cell_that_cannot_share_the_held_batch_stands_in_the_column_of_the_others() -> None:
    ran = {**RESNET, "topology": "1x2", "batch_size": "64", "global_batch_size": "128"}
    skipped = reading._completed({**RESNET, "topology": "1x3"}, [ran, {**RESNET, "topology": "1x3"}], "global_batch")
    assert skipped["global_batch_size"] == "128"


@pytest.mark.parametrize(
    ("params", "others", "held", "batch", "whole"),
    [
        # Its own values are kept, whatever the others have.
        ({"topology": "2x3", "batch_size": "8"}, {"batch_size": "32"}, "batch", "8", "48"),
        ({"topology": "2x3", "global_batch_size": "48"}, {"batch_size": "32"}, "batch", "8", "48"),
        ({"topology": "2x3", "batch_size": "8", "accumulate": "2"}, {}, "batch", "8", "96"),
        ({"topology": "2x3", "global_batch_size": "48", "accumulate": "2"}, {}, "batch", "4", "48"),
        ({"topology": "1x2", "batch_size": "16", "global_batch_size": "99"}, {}, "batch", "16", "99"),
        # What it lacks it has in common with the others.
        ({"topology": "1x2"}, {"batch_size": "16"}, "batch", "16", "32"),
        ({"topology": "1x2", "accumulate": "3"}, {"batch_size": "16"}, "batch", "16", "96"),
        ({"topology": "1x2", "batch_size": "None"}, {"batch_size": "16"}, "batch", "16", "32"),
        ({"topology": "1x2", "batch_size": "much"}, {"batch_size": "16"}, "batch", "16", "32"),
        ({}, {"batch_size": "16", "topology": "1x4"}, "batch", "16", "64"),
        # Nobody has any.
        ({"topology": "1x2"}, {}, "batch", str(DEFAULT_GLOBAL_BATCH // 2), str(DEFAULT_GLOBAL_BATCH)),
        ({"topology": "none"}, {}, "batch", str(DEFAULT_GLOBAL_BATCH), str(DEFAULT_GLOBAL_BATCH)),
        # With the global batch held, a batch size is that of a single worker.
        ({"topology": "1x2"}, {"global_batch_size": "64"}, "global_batch", "32", "64"),
        ({"topology": "1x2", "batch_size": "16"}, {"batch_size": "16"}, "global_batch", "16", "16"),
        ({"topology": "1x2", "batch_size": "16", "accumulate": "2"}, {"batch_size": "1"}, "global_batch", "16", "32"),
    ],
)
def test_a_cells_batch_follows_from_what_is_known_of_it(
    params: dict[str, str], others: dict[str, str], held: str, batch: str, whole: str
) -> None:
    full = reading._completed(params, [params, others], held)
    assert (full["batch_size"], full["global_batch_size"]) == (batch, whole)
    assert USUAL.items() <= full.items()
    assert full["topology"] == params.get("topology", others.get("topology"))


def cell(name: str, state: str = "RUN", reason: str = "", **params: str) -> dict[str, Any]:
    return {"name": name, "state": state, "reason": reason, "params": {**RESNET, **params}}


def read(
    monkeypatch: pytest.MonkeyPatch, cells: list[dict[str, Any]], status: str = "RUNNING", **tags: str
) -> list[Any]:
    """The trials of a sweep, of which the second cell alone has a run; and a run is there that is of no cell."""
    client: Any = Store()
    own = client.create_run("1", tags, "s", status=status)
    for name, params in (("two", {"batch_size": "4", "topology": "1x2"}), ("stray", {}), ("old", {**RESNET})):
        client.create_run("1", {"cifar_ray.failure": "no room"}, name, status="FAILED").data.params.update(params)
    client.runs["id3"].data.params.update(topology="1x1", batch_size="2", global_batch_size="2")
    monkeypatch.setattr(parent, "children", lambda client, own: [run for run in client.runs.values() if run is not own])
    return reading._cells(client, own, cells)


def test_every_cell_is_there_with_or_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        cell("one", "SKIPPED", "too large", topology="1x9"),
        cell("two", topology="1x2", global_batch_size="8"),
        cell("three", "PENDING"),
        cell("four", "PENDING", "the cluster went away"),
    ]
    found = [(one.name, one.run_id, one.status, one.reason) for one in read(monkeypatch, cells)]
    expected = [
        ("one", "", "SKIPPED", "too large"),
        ("two", "id1", "FAILED", "no room"),
        ("three", "", "PENDING", ""),
        ("four", "", "FAILED", "the cluster went away"),
        ("old", "id3", "FAILED", "no room"),  # of no cell, and known well enough to be placed
    ]
    assert found == expected
    ended = read(monkeypatch, cells, status="FINISHED")
    assert (ended[2].status, ended[2].reason) == ("FAILED", "it ended without a run")
    assert (ended[1].batch_size, ended[1].global_batch_size) == (4, 8)  # its run's own, and what that lacks


@pytest.mark.parametrize(("tags", "whole"), [({"cifar_ray.hold": "global_batch"}, "16"), ({}, "32")])
def test_what_a_sweep_holds_decides_what_a_batch_size_means(
    tags: dict[str, str], whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [cell("one", "SKIPPED", topology="1x2", batch_size="16")]
    assert read(monkeypatch, cells, **tags)[0].params["global_batch_size"] == whole


def test_a_sweep_without_its_tags_has_none_of_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Store()
    own = client.create_run("1", {}, "s")
    monkeypatch.setattr(store, "connect", lambda uri: client)
    monkeypatch.setattr(parent, "find", lambda client, name: parent.KnownSweep(own.info.run_id, "", 0.0))
    monkeypatch.setattr(parent, "children", lambda client, own: [])
    study = reading.study("http://store:5000", "s")
    assert (study.command, study.hold, study.axes, list(study.trials)) == ("", "batch", (), [])
    assert study.cautions
    own.data.tags.update({"cifar_ray.hold": "seed", "cifar_ray.axes": "topology, seed", "cifar_ray.command": "x"})
    study = reading.study("http://store:5000", "s")
    assert (study.command, study.hold, study.axes) == ("x", "seed", ("topology", "seed"))


def test_a_store_that_fails_while_a_sweep_is_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise MlflowException("the disk is on fire")

    client: Any = Store()
    run = client.create_run("1", {store.KEY_TAG: "k"}, "mine")
    monkeypatch.setattr(store, "connect", lambda uri: client)
    monkeypatch.setattr(store, "open_run", lambda uri, name: (client, store._known(run)))
    monkeypatch.setattr(store, "find", lambda client, name: store._known(run))
    monkeypatch.setattr(parent, "find", lambda client, name: parent.KnownSweep("id0", "", 0.0))
    client.get_run = fails
    for read_one in (
        lambda: reading.study("http://store:5000", "s"),
        lambda: reading.runs("http://store:5000", ["mine"]),
    ):
        with pytest.raises(ConfigError, match=r"http://store:5000 does not \(the disk is on fire\)"):
            read_one()


def test_a_sweep_is_searched_by_its_name_the_newest_first() -> None:
    class Searched(Store):
        def search_runs(self, experiments: list[str], wanted: str, **options: Any) -> list[Any]:
            self.asked.append((wanted, {"experiments": experiments, **options}))
            return list(self.runs.values())

    client: Any = Searched()
    assert parent.find(client, "it's") is None
    (wanted, options), *_ = client.asked
    assert wanted == "tags.`cifar_ray.kind` = 'sweep' and tags.`cifar_ray.sweep` = 'its'"
    assert options == {"experiments": ["1", "2"], "order_by": ["attributes.start_time DESC"], "max_results": 1}
    run = client.create_run("1", {store.FOLDER_TAG: "/there"}, "its")
    assert parent.find(client, "its") == parent.KnownSweep(run.info.run_id, "/there", 0.0)
    run.data.metrics["sweep/wall_s"] = 12.5
    del run.data.tags[store.FOLDER_TAG]
    assert parent.find(client, "its") == parent.KnownSweep(run.info.run_id, "", 12.5)


def test_a_sweeps_runs_are_read_page_by_page_the_oldest_first() -> None:
    class Page(list[Any]):
        token = ""

    class Paged(Store):
        def search_runs(self, experiments: list[str], wanted: str, **options: Any) -> Page:
            self.asked.append((wanted, {"experiments": experiments, **options}))
            page = Page([len(self.asked)])
            page.token = f"after {len(self.asked)}" if len(self.asked) < 3 else ""
            return page

    client: Any = Paged()
    own = client.create_run("5", {}, "s")
    assert parent.children(client, own) == [1, 2, 3]
    assert [options["page_token"] for _, options in client.asked] == [None, "after 1", "after 2"]
    for wanted, options in client.asked:
        assert wanted == "tags.`mlflow.parentRunId` = 'id0'"
        assert (options["experiments"], options["order_by"]) == (["5"], ["attributes.start_time ASC"])


def test_runs_of_one_name_are_told_apart_by_their_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Store()
    client.create_run("1", {store.KEY_TAG: "a", "cifar_ray.sweep": "s"}, "mine")
    client.create_run("1", {store.KEY_TAG: "b"}, "mine")
    monkeypatch.setattr(store, "_matching", lambda client, run: list(client.runs.values()))
    with pytest.raises(store.AmbiguousRunError) as caught:
        store.find(client, "mine")
    assert str(caught.value) == "there are 2 runs named 'mine'; take one of their ids: id0 (of sweep s), id1"


def test_a_store_that_fails_while_it_is_searched_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(client: Any, run: str) -> list[Any]:
        raise MlflowException("the disk is on fire")

    monkeypatch.setattr(store, "_matching", fails)
    with pytest.raises(ConfigError, match=r"http://store:5000 does not \(the disk is on fire\)"):
        store.find(Store(), "mine")  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [True, False])
def test_an_experiment_that_another_process_has_just_made_is_taken(first: bool) -> None:
    found = iter([None, SimpleNamespace(experiment_id="9", lifecycle_stage="active") if not first else None])

    class Raced(Store):
        def get_experiment_by_name(self, name: str) -> Any:
            return next(found)

        def create_experiment(self, name: str, **options: Any) -> str:
            raise MlflowException("exists")

    client: Any = Raced()
    if first:
        with pytest.raises(MlflowException, match="exists"):
            store.experiment_id(client, "mine")
    else:
        assert store.experiment_id(client, "mine") == "9"
