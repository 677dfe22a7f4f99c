"""A sweep's own run, and a run that another driver goes on with, in MLflow."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.tasks import Figure, TaskSpec
from cifar_ray.tracking import pages, reading, store
from cifar_ray.tracking import record as module
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.study import FOLDER_TAG, KEY_TAG, STOPPED_TAG, TASK_TAG, Sweep
from cifar_ray.training import recipe
from tests.support.helpers import decided_of
from tests.support.mlflow_store import alter, only_run, refuse, text, value

SWEEP = sweeps.from_mapping({"name": "s", "grid": {"topology": ["1x1", "1x2"]}, "train": {"dataset": "digits"}})
CONFIG = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", topology="1x2"))


def opened(client: MlflowClient, digits: Dataset, name: str = "mine", **others: Any) -> RunRecord:
    named = {"name": name, "key": name, "folder": f"/there/{name}"}
    return RunRecord(client, CONFIG, decided_of(CONFIG), **named, dataset=digits, begun=0.0, **others)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What guards are made for."""
    made: list[tuple[Any, ...]] = []
    guard = SimpleNamespace(conclude=lambda written, status: written)
    monkeypatch.setattr(module, "Guard", lambda *arguments: made.append(arguments) or guard)
    return made


def test_a_sweep_is_recorded_from_its_beginning_to_its_end(
    client: MlflowClient, guarded: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "is_server", lambda uri: True)  # which has pages
    record = SweepRecord.create(client, SWEEP, "/there/s", "cifar-ray sweep x")
    cells = [
        {"name": name, "params": {}, "state": state, "reason": reason}
        for name, state, reason in (("one", "RUN", ""), ("two", "RUN", "no room"), ("three", "SKIPPED", "too large"))
    ]
    record.cells([{**cell, "values": {"topology": "1x1"}, "config": None} for cell in cells])
    for seconds in (1.0, 2.0):
        record.figures({"sweep/wall_s": seconds})
    assert record.end("FINISHED")
    found = only_run(client)
    assert (found.info.run_name, found.info.status, found.data.metrics) == ("s", "FINISHED", {"sweep/wall_s": 2.0})
    experiment = client.get_experiment(found.info.experiment_id)
    assert (experiment.name, experiment.experiment_id) == ("cifar_ray/digits", record.experiment_id)
    expected = {
        "cifar_ray.kind": "sweep", "cifar_ray.sweep": "s", FOLDER_TAG: "/there/s", "cifar_ray.hold": SWEEP.held,
        "cifar_ray.axes": "topology", "cifar_ray.command": "cifar-ray sweep x", "mlflow.source.name": "cifar-ray sweep",
        "cifar_ray.runs": "2", "cifar_ray.failed_without_run": "1",
    }  # fmt: skip
    assert expected.items() <= found.data.tags.items()
    assert text(client, record.run_id, "sweep.yaml") == sweeps.to_yaml(SWEEP)
    assert value(client, record.run_id, "cells.json") == {"cells": cells}
    assert guarded == [(client.tracking_uri, found.data.tags[store.SESSION_TAG])]
    assert record.page == pages.run(client.tracking_uri, found)


def test_a_sweep_goes_on_where_an_earlier_driver_ended(client: MlflowClient, guarded: list[tuple[Any, ...]]) -> None:
    run_id = client.create_run("0", tags={store.SESSION_TAG: "earlier"}).info.run_id
    client.set_terminated(run_id, "KILLED")
    record = SweepRecord.reopen(client, Sweep("s", [], "", "", run_id=run_id))
    taken = client.get_run(run_id)
    assert taken.info.status == "RUNNING"
    assert taken.data.tags[store.SESSION_TAG] not in ("", "earlier")
    assert guarded == [(client.tracking_uri, taken.data.tags[store.SESSION_TAG])]
    record.figures({"x": 1.0})
    record.end("KILLED")
    assert client.get_run(run_id).data.metrics == {"x": 1.0}


@pytest.mark.usefixtures("guarded")
def test_a_store_that_refuses_is_said_when_a_driver_of_a_sweep_begins(client: MlflowClient) -> None:
    run_id = client.create_run("0").info.run_id
    refuse(client, "INSERT ON runs")
    with pytest.raises(ConfigError, match=rf"{client.tracking_uri} does not \(no room\)"):
        SweepRecord.create(client, SWEEP, "/s", "")
    alter(client, "DROP TABLE runs")
    known = Sweep("s", [], "", "", run_id=run_id)
    for begin in (lambda: SweepRecord.reopen(client, known), lambda: reading.trials(client, known)):
        with pytest.raises(ConfigError, match=rf"{client.tracking_uri} does not \(no such table: runs\)"):
            begin()


def test_what_is_known_of_a_sweeps_runs(client: MlflowClient) -> None:
    own = client.create_run("0").info.run_id
    facts = asdict(TaskSpec("gone:Depth", (Figure("rmse", "RMSE", "min"),), "scans"))
    tags: dict[str, dict[str, str]] = {"a": {}, "b": {STOPPED_TAG: "median"}, "c": {TASK_TAG: json.dumps(facts)}}
    one, two, other = (
        client.create_run("0", tags={KEY_TAG: key, "mlflow.parentRunId": own, **more}, run_name=key).info.run_id
        for key, more in tags.items()
    )
    client.log_metric(one, "test/loss", 1.0)
    client.set_terminated(one, "FINISHED")
    client.set_terminated(two, "KILLED")
    for name, figure in {"test/rmse": 3.21, "test/accuracy": 0.5}.items():
        client.log_metric(other, name, figure)
    runs = reading.trials(client, Sweep("s", [], "", "", run_id=own))
    assert [(run.key, run.name, run.run_id, run.status, run.state, run.score) for run in runs] == [
        ("a", "a", one, "FINISHED", "finished", None),
        ("b", "b", two, "KILLED", "stopped", None),
        ("c", "c", other, "RUNNING", "running", 3.21),
    ]


def test_a_request_whose_answer_was_lost_makes_no_second_run(
    client: MlflowClient, guarded: list[tuple[Any, ...]], digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = client.create_run

    def lost(*arguments: Any, **options: Any) -> None:
        create(*arguments, **options)
        raise MlflowException("no answer")

    client.create_run("0", tags={KEY_TAG: "of another"})
    monkeypatch.setattr(client, "create_run", lost)
    record = opened(client, digits)
    record.end("KILLED")
    (found,) = client.search_runs(store.all_experiments(client), "attributes.run_name = 'mine'")
    assert (found.info.run_id, found.info.status) == (record.run_id, "KILLED")
    assert guarded == [(client.tracking_uri, found.data.tags[store.SESSION_TAG])]


def test_a_run_that_goes_on_keeps_what_it_was(
    client: MlflowClient, guarded: list[tuple[Any, ...]], digits: Dataset
) -> None:
    first = opened(client, digits)
    first.end("KILLED")
    session = only_run(client).data.tags[store.SESSION_TAG]
    client.set_tag(first.run_id, "cifar_ray.machine", "another")
    record = opened(client, digits)
    while "cifar_ray.earlier.cifar_ray.machine" not in (found := only_run(client)).data.tags:
        time.sleep(0.02)
    assert (found.info.status, found.data.tags[store.SESSION_TAG] != session) == ("RUNNING", True)
    assert guarded[-1] == (client.tracking_uri, found.data.tags[store.SESSION_TAG])
    for topology in ("1x1", "1x4"):
        record.moved(replace(decided_of(CONFIG), topology=topology))
    record.end("FAILED")
    tags = client.get_run(record.run_id).data.tags
    expected = {"topology": "1x4", "world_size": "4", "cifar_ray.earlier.topology": "1x2, 1x1"}
    assert (expected | {"cifar_ray.earlier.cifar_ray.machine": "another"}).items() <= tags.items()
    assert (tags["cifar_ray.machine"] != "another", "cifar_ray.earlier.model" in tags) == (True, False)


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("grid", "name"),
    [
        ({"dataset": ["digits", "mnist"]}, "cifar_ray"),
        ({"dataset": ["folder:/home/me/photos"]}, "cifar_ray/photos"),
        ({"topology": ["1x1"]}, "cifar_ray/cifar10"),
    ],
)
def test_a_sweep_stays_whole_in_the_experiment_of_its_data_sets(
    grid: dict[str, list[str]], name: str, client: MlflowClient, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SweepRecord.create(client, sweeps.from_mapping({"name": "s", "grid": grid}), "/there/s", "")
    home, tags = record.experiment_id, {"mlflow.parentRunId": record.run_id}
    opened(client, digits, "one", tags=tags, experiment=home).end("FINISHED")
    record.end("FINISHED")
    assert client.get_experiment(home).name == name
    known = reading.find_sweep(client, "s")
    assert known is not None
    assert [run.key for run in reading.trials(client, known)] == ["one"]
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")  # a person names it
    named = opened(client, digits)
    named.end("KILLED")
    assert client.get_experiment(client.get_run(named.run_id).info.experiment_id).name == "mine"
