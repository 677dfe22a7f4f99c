"""A sweep's own run, and a run that another driver goes on with, in MLflow."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
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
from cifar_ray.tracking import listing, pages, parent, store
from cifar_ray.tracking import record as module
from cifar_ray.tracking.parent import KnownSweep, KnownTrial, SweepRecord
from cifar_ray.tracking.run import RunRecord
from cifar_ray.tracking.study import TASK_TAG
from cifar_ray.training import recipe
from tests.support.helpers import decided_of
from tests.support.mlflow_store import alter, files, only_run, points, refuse, steps, text, value

SWEEP = sweeps.from_mapping({"name": "s", "grid": {"topology": ["1x1", "1x2"]}, "train": {"dataset": "digits"}})
CONFIG = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", topology="1x2"))


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What guards are made for."""
    made: list[tuple[Any, ...]] = []

    def guard(*arguments: Any) -> Any:
        made.append(arguments)
        return SimpleNamespace(conclude=lambda written, status: written)

    monkeypatch.setattr(module, "Guard", guard)
    return made


def test_a_sweep_is_recorded_from_its_beginning_to_its_end(
    client: MlflowClient, guarded: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "is_server", lambda uri: True)  # which has pages
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
    assert (found.info.run_name, found.info.status) == ("s", "FINISHED")
    experiment = client.get_experiment(found.info.experiment_id)
    assert (experiment.name, experiment.experiment_id) == ("cifar_ray/digits", record.experiment_id)
    expected = {
        "cifar_ray.kind": "sweep", "cifar_ray.sweep": "s", store.FOLDER_TAG: "/there/s", "cifar_ray.hold": SWEEP.held,
        "cifar_ray.axes": "topology", "cifar_ray.command": "cifar-ray sweep x", "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "cifar-ray sweep",
        "mlflow.note.content": "Sweep over topology\n\n    cifar-ray sweep x",
        "cifar_ray.runs": "2", "cifar_ray.failed_without_run": "1",
    }  # fmt: skip
    assert expected.items() <= found.data.tags.items()
    assert "version.torch" in found.data.tags
    assert files(client, record.run_id) == {"sweep.yaml", "cells.json"}
    assert text(client, record.run_id, "sweep.yaml") == sweeps.to_yaml(SWEEP)
    assert value(client, record.run_id, "cells.json") == {"cells": cells}
    assert [(name, step, figure) for name, step, _, figure in points(client, record.run_id)] == [
        ("sweep/updates", 1, 1.0), ("sweep/updates", 2, 2.0), ("sweep/wall_s", 1, 1.0), ("sweep/wall_s", 2, 2.0),
    ]  # fmt: skip
    assert record.child_tags == {"mlflow.parentRunId": record.run_id}
    assert guarded == [(client.tracking_uri, record.run_id, found.data.tags[store.SESSION_TAG])]
    assert record.page == pages.run(client.tracking_uri, found)


def test_a_sweep_goes_on_counting_where_an_earlier_driver_ended(
    client: MlflowClient, guarded: list[tuple[Any, ...]]
) -> None:
    run_id = client.create_run("0", tags={store.SESSION_TAG: "earlier"}).info.run_id
    client.log_metric(run_id, "sweep/updates", 7.0)
    client.set_terminated(run_id, "KILLED")
    record = SweepRecord.reopen(client, KnownSweep(run_id, "/there/s", 1.0))
    taken = client.get_run(run_id)
    assert taken.info.status == "RUNNING"
    assert taken.data.tags[store.SESSION_TAG] not in ("", "earlier")
    assert guarded == [(client.tracking_uri, run_id, taken.data.tags[store.SESSION_TAG])]
    record.figures({"x": 1.0})
    record.end("KILLED")
    assert ("x", 8) in steps(client, run_id)


@pytest.mark.usefixtures("guarded")
def test_a_store_that_refuses_is_said_when_a_driver_begins(client: MlflowClient, digits: Dataset) -> None:
    run_id = client.create_run("0").info.run_id
    refuse(client, "INSERT ON runs")
    for begin in (
        lambda: SweepRecord.create(client, SWEEP, "/s", ""),
        lambda: RunRecord.create(client, CONFIG, decided_of(CONFIG), "mine", "key", "/mine", digits, 0.0),
    ):
        with pytest.raises(ConfigError, match=rf"{client.tracking_uri} does not \(no room\)"):
            begin()
    alter(client, "DROP TABLE runs")
    known = KnownSweep(run_id, "", 0.0)
    for begin in (
        lambda: SweepRecord.reopen(client, known),
        lambda: RunRecord.reopen(client, CONFIG, decided_of(CONFIG), run_id),
        lambda: parent.trials(client, known),
    ):
        with pytest.raises(ConfigError, match=rf"{client.tracking_uri} does not \(no such table: runs\)"):
            begin()


def test_what_is_known_of_a_sweeps_runs(client: MlflowClient) -> None:
    own = client.create_run("0").info.run_id
    one, two = (
        client.create_run("0", tags={store.KEY_TAG: key, "mlflow.parentRunId": own}, run_name=key).info.run_id
        for key in "ab"
    )
    client.log_metric(one, "time/wall_s", 3.0)
    client.log_metric(one, "test/loss", 1.0)
    client.set_tag(one, "cifar_ray.checkpoint", "/runs/s/a/checkpoints/step-00000044")
    client.set_terminated(one, "FINISHED")
    client.set_tag(two, parent.STOPPED_TAG, "median")
    client.set_terminated(two, "KILLED")
    facts = asdict(TaskSpec("gone:Depth", (Figure("rmse", "RMSE", "min"),), "scans"))
    tags = {store.KEY_TAG: "c", "mlflow.parentRunId": own, TASK_TAG: json.dumps(facts)}
    other = client.create_run("0", tags=tags, run_name="c").info.run_id
    figures = {"test/rmse": 3.21, "scans_per_s": 1500.0, "test/accuracy": 0.5, "images_per_s": 9.0}
    for name, figure in figures.items():
        client.log_metric(other, name, figure)
    assert parent.trials(client, KnownSweep(own, "", 0.0)) == {
        "a": KnownTrial(
            one,
            "FINISHED",
            False,
            {"time/wall_s": 3.0},
            figures={"time/wall_s": 3.0, "test/loss": 1.0},
            name="a",
            steps=44,
        ),
        "b": KnownTrial(two, "KILLED", True, {}, name="b"),
        "c": KnownTrial(other, "RUNNING", False, {"scans_per_s": 1500.0}, 3.21, figures=figures, name="c"),
    }


def test_a_sweep_is_found_by_its_name_or_refused(client: MlflowClient, tmp_path: Path) -> None:
    run_id = client.create_run("0", tags={parent.KIND_TAG: parent.KIND, store.SWEEP_TAG: "s"}).info.run_id
    found, known = parent.connect("s", client.tracking_uri)
    assert (found.tracking_uri, known) == (client.tracking_uri, KnownSweep(run_id, "", 0.0))
    away = tmp_path / "away.db"
    for name, uri in (("t", client.tracking_uri), ("s", f"sqlite:///{away}")):
        with pytest.raises(ConfigError) as caught:
            parent.connect(name, uri)
        assert str(caught.value) == f"there is no sweep {name!r} in {uri}; a sweep is named by the name it was given"
    assert not away.exists()


def test_a_request_whose_answer_was_lost_makes_no_second_run(
    client: MlflowClient, guarded: list[tuple[Any, ...]], digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = client.create_run

    def lost(*arguments: Any, **options: Any) -> None:
        create(*arguments, **options)
        raise MlflowException("no answer")

    client.create_run("0", tags={store.KEY_TAG: "of another"})
    monkeypatch.setattr(client, "create_run", lost)
    record = RunRecord.create(client, CONFIG, decided_of(CONFIG), "mine", "key", "/mine", digits, 0.0)
    record.end("KILLED")
    (found,) = client.search_runs(store.all_experiments(client), "attributes.run_name = 'mine'")
    assert (found.info.run_id, found.info.status) == (record.run_id, "KILLED")
    assert guarded == [(client.tracking_uri, record.run_id, found.data.tags[store.SESSION_TAG])]


def test_a_run_that_goes_on_elsewhere_keeps_what_it_was(
    client: MlflowClient, guarded: list[tuple[Any, ...]], digits: Dataset
) -> None:
    first = RunRecord.create(client, CONFIG, decided_of(CONFIG), "mine", "key", "/mine", digits, 0.0)
    first.end("KILLED")
    client.set_tag(first.run_id, "cifar_ray.machine", "another")
    record = RunRecord.reopen(client, CONFIG, decided_of(CONFIG), first.run_id)
    found = only_run(client)
    assert found.info.status == "RUNNING"
    assert found.data.tags[store.SESSION_TAG] != first.tags_before[store.SESSION_TAG]
    assert guarded[-1] == (client.tracking_uri, first.run_id, found.data.tags[store.SESSION_TAG])
    assert record.tags_before["cifar_ray.machine"] == "another"
    record.moved(replace(decided_of(CONFIG), topology="1x1"))
    record.moved(replace(decided_of(CONFIG), topology="1x4"))
    record.end("FAILED")
    tags = client.get_run(record.run_id).data.tags
    assert (tags["topology"], tags["world_size"]) == ("1x4", "4")
    assert tags["cifar_ray.earlier.topology"] == "1x2, 1x1"
    assert tags["cifar_ray.earlier.cifar_ray.machine"] == "another"
    assert tags["cifar_ray.machine"] != "another"
    assert "cifar_ray.earlier.model" not in tags


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("grid", "name"),
    [
        ({"dataset": ["digits", "mnist"]}, "cifar_ray"),
        ({"dataset": ["mnist"]}, "cifar_ray/mnist"),
        ({"dataset": ["folder:/home/me/photos"]}, "cifar_ray/photos"),
        ({"topology": ["1x1"]}, "cifar_ray/cifar10"),
    ],
)
def test_a_sweep_stays_whole_in_the_experiment_of_its_data_sets(
    grid: dict[str, list[str]], name: str, client: MlflowClient, digits: Dataset
) -> None:
    sweep = sweeps.from_mapping({"name": "s", "grid": grid})
    record = SweepRecord.create(client, sweep, "/there/s", "")
    home, tags = record.experiment_id, record.child_tags
    RunRecord.create(client, CONFIG, decided_of(CONFIG), "one", "key", "/there/s/one", digits, 0.0, tags, home).end(
        "FINISHED"
    )
    record.end("FINISHED")
    assert client.get_experiment(home).name == name
    known = parent.find(client, "s")
    assert known is not None
    assert list(parent.trials(client, known)) == ["key"]
    assert store.find(client, "one").key == "key"


@pytest.mark.usefixtures("guarded")
def test_runs_of_any_experiment_are_found(
    client: MlflowClient, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = client.create_run(store.experiment_id(client, "cifar_ray"), tags={store.KEY_TAG: "old"}, run_name="old")
    RunRecord.create(client, CONFIG, decided_of(CONFIG), "new", "new", "/there/new", digits, 0.0).end("FINISHED")
    assert {store.find(client, name).key for name in ("old", "new", old.info.run_id)} == {"old", "new"}
    assert {one.name for one in listing.everything(client.tracking_uri)} == {"old", "new"}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    given = RunRecord.create(client, CONFIG, decided_of(CONFIG), "given", "given", "/g", digits, 0.0)
    given.end("FINISHED")
    assert client.get_experiment(client.get_run(given.run_id).info.experiment_id).name == "mine"
