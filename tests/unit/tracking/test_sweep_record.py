"""A sweep's own run, and a run that another driver goes on with, in a store that keeps what it is told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from cifar_ray.config import sweeptext
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.tracking import parent, run, store
from cifar_ray.tracking.parent import KnownSweep, KnownTrial, SweepRecord
from cifar_ray.tracking.run import RunRecord
from cifar_ray.training import recipe
from tests.support.tracked import Store

SWEEP = sweeptext.from_mapping({"name": "s", "grid": {"topology": ["1x1", "1x2"]}, "train": {"dataset": "digits"}})
CONFIG = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", topology="1x2"))


class Refusing(Store):
    def create_run(self, *arguments: Any, **options: Any) -> Any:
        raise MlflowException("no room")

    get_run = create_run


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What guards are made for."""
    made: list[tuple[Any, ...]] = []

    def guard(*arguments: Any) -> Any:
        made.append(arguments)
        return SimpleNamespace(conclude=lambda written, status: written)

    for module in (run, parent):
        monkeypatch.setattr(module, "Guard", guard)
    monkeypatch.setattr(store, "experiment_id", lambda client, name: f"of {name}")
    return made


def test_a_sweep_is_recorded_from_its_beginning_to_its_end(guarded: list[tuple[Any, ...]]) -> None:
    client: Any = Store()
    record = SweepRecord.create(client, SWEEP, "/there/s", "cifar-ray sweep x")
    record.cells([{"name": "one"}])
    for seconds in (1.0, 2.0):
        record.figures({"sweep/wall_s": seconds})
    assert record.end("FINISHED")
    (found,) = client.runs.values()
    assert (found.info.run_name, found.info.status) == ("s", "FINISHED")
    expected = {
        "cifar_ray.kind": "sweep", "cifar_ray.sweep": "s", store.FOLDER_TAG: "/there/s", "cifar_ray.hold": SWEEP.held,
        "cifar_ray.axes": "topology", "cifar_ray.command": "cifar-ray sweep x", "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "cifar-ray sweep",
    }  # fmt: skip
    assert expected.items() <= found.data.tags.items()
    assert "version.torch" in found.data.tags
    assert client.artifacts == {
        (record.run_id, "sweep.yaml"): sweeptext.to_yaml(SWEEP),
        (record.run_id, "cells.json"): {"cells": [{"name": "one"}]},
    }
    assert {row[:2] + row[3:] for row in found.history} == {
        ("sweep/wall_s", 1, 1.0), ("sweep/updates", 1, 1.0), ("sweep/wall_s", 2, 2.0), ("sweep/updates", 2, 2.0),
    }  # fmt: skip
    assert record.child_tags == {"mlflow.parentRunId": record.run_id}
    assert guarded == [(client.tracking_uri, record.run_id, found.data.tags[store.SESSION_TAG])]
    assert record.page == f"http://store:5000/#/experiments/of {SWEEP.base.experiment}/runs/{record.run_id}"


def test_a_sweep_goes_on_counting_where_an_earlier_driver_ended(guarded: list[tuple[Any, ...]]) -> None:
    client: Any = Store()
    old = client.create_run("1", {store.SESSION_TAG: "earlier"}, "s", status="KILLED")
    old.data.metrics["sweep/updates"] = 7.0
    record = SweepRecord.reopen(client, KnownSweep("id0", "/there/s", 1.0))
    assert old.info.status == "RUNNING"
    assert old.data.tags[store.SESSION_TAG] not in ("", "earlier")
    assert guarded == [(client.tracking_uri, "id0", old.data.tags[store.SESSION_TAG])]
    record.figures({"x": 1.0})
    record.end("KILLED")
    assert [row[:2] for row in old.history if row[0] == "x"] == [("x", 8)]


@pytest.mark.usefixtures("guarded")
def test_a_store_that_refuses_is_said_when_a_driver_begins(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Refusing()
    monkeypatch.setattr(store, "find_key", lambda client, key: None)
    monkeypatch.setattr(parent, "children", client.get_run)
    begins = [
        lambda: SweepRecord.create(client, SWEEP, "/s", ""),
        lambda: SweepRecord.reopen(client, KnownSweep("id0", "", 0.0)),
        lambda: RunRecord.create(client, CONFIG, "mine", "key", "/mine", digits, 0.0),
        lambda: RunRecord.reopen(client, CONFIG, "id0"),
        lambda: parent.trials(client, KnownSweep("id0", "", 0.0)),
    ]
    for begin in begins:
        with pytest.raises(ConfigError, match=r"http://store:5000 does not \(no room\)"):
            begin()


def test_what_is_known_of_a_sweeps_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Store()
    own = client.create_run("1", {}, "s")
    one = client.create_run("1", {store.KEY_TAG: "a"}, "one", status="FINISHED")
    one.data.metrics.update({"time/wall_s": 3.0, "test/loss": 1.0})
    client.create_run("1", {store.KEY_TAG: "b", parent.STOPPED_TAG: "median"}, "two", status="KILLED")
    children = {id(own): [run for run in client.runs.values() if run is not own]}
    monkeypatch.setattr(parent, "children", lambda client, own: children[id(own)])
    assert parent.trials(client, KnownSweep("id0", "", 0.0)) == {
        "a": KnownTrial("id1", "FINISHED", False, {"time/wall_s": 3.0}),
        "b": KnownTrial("id2", "KILLED", True, {}),
    }


@pytest.mark.parametrize(("there", "known"), [(False, True), (True, False), (True, True)])
def test_a_sweep_is_found_by_its_name_or_refused(there: bool, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = KnownSweep("id0", "", 0.0)
    clients = {"http://store:5000": "client"}
    monkeypatch.setattr(store, "exists", lambda uri: there)
    monkeypatch.setattr(store, "connect", clients.__getitem__)
    monkeypatch.setattr(
        parent, "find", lambda client, name: sweep if (client, name, known) == ("client", "s", True) else None
    )
    if there and known:
        assert parent.connect("s", "http://store:5000") == ("client", sweep)
        return
    with pytest.raises(ConfigError) as caught:
        parent.connect("s", "http://store:5000")
    assert str(caught.value) == "resume must be the name of a sweep in http://store:5000, got 's'"


def test_a_request_whose_answer_was_lost_makes_no_second_run(
    guarded: list[tuple[Any, ...]], digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(Store):
        def create_run(self, *arguments: Any, **options: Any) -> Any:
            super().create_run(*arguments, **options)
            raise MlflowException("no answer")

    client: Any = Lost()
    monkeypatch.setattr(
        store,
        "find_key",
        lambda client, key: next(run for run in client.runs.values() if run.data.tags[store.KEY_TAG] == key),
    )
    record = RunRecord.create(client, CONFIG, "mine", "key", "/mine", digits, 0.0)
    record.end("KILLED")
    assert list(client.runs) == ["id0"] == [record.run_id]
    assert client.runs["id0"].info.status == "KILLED"
    assert guarded == [(client.tracking_uri, "id0", client.runs["id0"].data.tags[store.SESSION_TAG])]


def test_a_run_that_goes_on_elsewhere_keeps_what_it_was(guarded: list[tuple[Any, ...]], digits: Dataset) -> None:
    client: Any = Store()
    RunRecord.create(client, CONFIG, "mine", "key", "/mine", digits, 0.0).end("KILLED")
    (found,) = client.runs.values()
    found.data.tags["cifar_ray.machine"] = "another"
    first = found.data.tags[store.SESSION_TAG]
    record = RunRecord.reopen(client, CONFIG, "id0")
    assert found.info.status == "RUNNING"
    assert found.data.tags[store.SESSION_TAG] != first
    assert guarded[-1] == (client.tracking_uri, "id0", found.data.tags[store.SESSION_TAG])
    assert record.tags_before["cifar_ray.machine"] == "another"
    smaller = replace(CONFIG, topology="1x1", batch_size=128)
    record.moved(smaller)
    record.moved(replace(CONFIG, topology="1x4", batch_size=32))
    record.end("FAILED")
    tags = found.data.tags
    assert (tags["topology"], tags["world_size"]) == ("1x4", "4")
    assert tags["cifar_ray.earlier.topology"] == "1x2, 1x1"
    assert tags["cifar_ray.earlier.cifar_ray.machine"] == "another"
    assert tags["cifar_ray.machine"] != "another"
    assert "cifar_ray.earlier.model" not in tags
