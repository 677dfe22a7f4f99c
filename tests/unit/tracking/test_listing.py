"""Which runs and sweeps a store has, one row each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cifar_ray.cli import records
from cifar_ray.config.errors import ConfigError
from cifar_ray.tasks import USUAL
from cifar_ray.tracking import parent, reading, store
from cifar_ray.tracking.study import KEY_TAG, PLANNED_TAG, STOPPED_BY_TAG, SWEEP_TAG, WITHOUT_RUN_TAG, Run, Sweep
from cifar_ray.tracking.uri import exists

EPOCH = "1970-01-01T00:00:"


def run(client: MlflowClient, name: str, second: int, of: str = "", accuracy: float = 0.0, **params: str) -> str:
    """The id of a run that began at ``second``, with figures when it has an accuracy."""
    tags = {KEY_TAG: name, **({parent.PARENT_TAG: of} if of else {})}
    run_id = client.create_run(store.experiment_id(client, "test"), 1000 * second, tags, name).info.run_id
    figures = [Metric("test/accuracy", accuracy, 0, 1), Metric("images_per_s", 1000 * accuracy, 0, 1)]
    client.log_batch(run_id, figures if accuracy else [], [Param(*one) for one in params.items()])
    return run_id


def sweep(client: MlflowClient, name: str, second: int) -> str:
    tags = {parent.KIND_TAG: parent.KIND, SWEEP_TAG: name}
    return client.create_run(store.experiment_id(client, "test"), 1000 * second, tags, name).info.run_id


def test_sweeps_and_runs_of_none_are_listed_newest_first(client: MlflowClient, tmp_path: Path) -> None:
    early = run(client, "early", 1, accuracy=0.5, dataset="mnist", model="vit", topology="1x1")
    grid = sweep(client, "grid", 2)
    for second, (name, topology) in enumerate({"a": "1x1", "b": "1x2", "c": "1x1"}.items(), 3):
        run(client, name, second, grid, accuracy=0.25, model="resnet", topology=topology)
    late = run(client, "late", 6)
    client.create_run("0", 7, run_name="foreign")
    client.delete_run(run(client, "deleted", 8))
    client.set_terminated(early, "FINISHED")
    client.set_terminated(late, "KILLED")
    listed = reading.everything(client.tracking_uri)
    assert [(type(one), one.name, one.run_id, one.state, one.started) for one in listed] == [
        (Run, "late", late, "stopped", f"{EPOCH}06+00:00"),
        (Sweep, "grid", grid, "running", f"{EPOCH}02+00:00"),
        (Run, "early", early, "finished", f"{EPOCH}01+00:00"),
    ]
    assert [(one.name, one.score) for one in listed[1].trials] == [("a", 0.25), ("b", 0.25), ("c", 0.25)]
    of_sweep, of_run = map(records.row, listed[1:])
    assert (of_sweep["kind"], of_sweep["topology"], of_sweep["runs"], of_sweep["model"]) == (
        *("sweep", "1x1, 1x2", 3, "resnet"),
    )
    found = {"kind": "run", "dataset": "mnist", "score": 0.5, "images_per_s": 500.0, "task": USUAL, "cost_usd": None}
    assert found.items() <= of_run.items()
    away = f"sqlite:///{tmp_path}/away.db"
    assert (reading.everything(away), exists(away)) == ([], False)


def test_a_run_that_a_limit_has_stopped_is_not_finished_and_costs_are_listed(client: MlflowClient) -> None:
    whole, part = run(client, "whole", 1), run(client, "part", 2)
    for step, cost in ((60, 1.5), (120, 2.5)):
        client.log_metric(part, "cost/usd", cost, 0, step)
    client.set_tag(part, STOPPED_BY_TAG, "max_cost")
    for run_id in (whole, part):
        client.set_terminated(run_id, "FINISHED")
    listed = [records.row(one) for one in reading.everything(client.tracking_uri)]
    assert [(one["state"], one["cost_usd"]) for one in listed] == [("stopped", 2.5), ("finished", None)]


def test_a_sweep_whose_runs_have_failed_is_not_finished(client: MlflowClient) -> None:
    grid = sweep(client, "grid", 1)
    for second, name, status in ((2, "a", "FAILED"), (3, "b", "FINISHED"), (4, "c", "RUNNING")):
        client.set_terminated(run(client, name, second, grid, dataset="digits"), status)

    def state() -> tuple[Any, ...]:
        (one,) = map(records.row, reading.everything(client.tracking_uri))
        return one["state"], one["runs"], one["planned"], one["failed"]

    assert state() == ("running", 3, 3, 1)
    client.set_terminated(grid, "FINISHED")
    for tag in ((PLANNED_TAG, "12"), (WITHOUT_RUN_TAG, "2")):
        client.set_tag(grid, *tag)
    assert state() == ("failed", 3, 12, 3)
    client.set_terminated(grid, "KILLED")
    assert state() == ("stopped", 3, 12, 3)


def test_a_sweep_named_in_place_of_a_run_is_said_to_be_one(client: MlflowClient) -> None:
    run_id = run(client, "one", 2, sweep(client, "grid", 1))
    client.set_tag(run_id, SWEEP_TAG, "grid")
    sweep(client, "empty", 1)
    for name, told in (("grid", "^'grid' is a sweep, and a run is wanted"), ("empty", "there is no run or sweep")):
        with pytest.raises(ConfigError, match=told):
            reading.find_run(client, name)
    assert reading.find_run(client, "one").run_id == run_id
