"""Runs out of the store: which there are, and where a table places a cell that has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cifar_ray.cli import records
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import cautions
from cifar_ray.reporting.frame import Runs
from cifar_ray.tasks import USUAL
from cifar_ray.tracking import parent, reading, store
from cifar_ray.tracking.study import (
    FAILURE_TAG,
    FOLDER_TAG,
    KEY_TAG,
    PLANNED_TAG,
    STOPPED_BY_TAG,
    SWEEP_TAG,
    WITHOUT_RUN_TAG,
    Point,
    Run,
    Sweep,
)
from cifar_ray.tracking.uri import exists
from tests.support import mlflow_store
from tests.unit.tracking.test_run_record import unguarded  # noqa: F401

RESNET = {"model": "resnet", "dataset": "digits"}
SIZES = {"topology": "1x2", "batch_size": "4", "global_batch_size": "8"}


def cell(name: str, state: str = "RUN", reason: str = "", **params: str) -> dict[str, Any]:
    return {"name": name, "state": state, "reason": reason, "params": {**RESNET, **params}}


def sweep(client: MlflowClient, cells: list[dict[str, Any]], name: str = "s", second: int = 0) -> str:
    """The id of a sweep's own run in the store."""
    tags = {parent.KIND_TAG: parent.KIND, SWEEP_TAG: name}
    own = client.create_run(store.experiment_id(client, "test"), 1000 * second, tags, name).info.run_id
    client.log_dict(own, {"cells": cells}, parent.CELLS_FILE)
    return own


def child(client: MlflowClient, own: str, name: str, began: int = 1, accuracy: float = 0.0, **params: str) -> str:
    """The id of a run, of a sweep if its id is given, which began at ``began`` milliseconds."""
    tags = {KEY_TAG: name, **({parent.PARENT_TAG: own} if own else {})}
    run_id = client.create_run(store.experiment_id(client, "test"), began, tags, name).info.run_id
    figures = [Metric("test/accuracy", accuracy, 0, 1), Metric("images_per_s", 1000 * accuracy, 0, 1)]
    client.log_batch(run_id, figures if accuracy else [], [Param(*one) for one in params.items()])
    return run_id


def test_every_cell_is_there_with_or_without_a_run(client: MlflowClient) -> None:
    cells = [
        cell("one", "SKIPPED", "too large", **SIZES),
        cell("two", **SIZES),
        cell("three", "PENDING", **SIZES),
        cell("four", "PENDING", "the cluster went away", **SIZES),
    ]
    own = sweep(client, cells)
    two = child(client, own, "two", batch_size="4", topology="1x2")
    stray = child(client, own, "stray")  # of no cell, and nothing is known of it
    old = child(client, own, "old", topology="1x1", batch_size="2", global_batch_size="2", **RESNET)
    for run_id in (two, stray, old):
        client.set_tag(run_id, FAILURE_TAG, "no room")
        client.set_terminated(run_id, "FAILED")
    trials = reading.sweeps_or_runs(client.tracking_uri, ["s"])[0].trials
    assert [(one.name, one.run_id, one.status, one.reason) for one in trials] == [
        ("one", "", "SKIPPED", "too large"),
        ("two", two, "FAILED", "no room"),
        ("three", "", "PENDING", ""),
        ("four", "", "FAILED", "the cluster went away"),
        ("old", old, "FAILED", "no room"),  # of no cell, and known well enough to be placed
    ]
    assert (trials[1].batch_size, trials[1].global_batch_size) == (4, 8)  # its run's own, and what that lacks


RANGES = {"lr": "loguniform", "batch_size": "int"}


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"search": "random", "samples": 4, "scheduler": "asha"}, ("random", "asha", None, RANGES)),
        (
            {"search": "optuna", "samples": 4, "objective": "images_per_s:max"},
            ("optuna", "none", "images_per_s:max", RANGES),
        ),
        ({"grid": {"lr": [0.1, 0.2]}}, (None, "none", None, {})),
    ],
)
def test_a_search_is_known(client: MlflowClient, given: dict[str, Any], known: tuple[Any, ...]) -> None:
    axes = {"lr": "loguniform:0.01:0.3", "batch_size": "int:8:64", "optimizer": ["sgd", "adamw"]}
    config = sweeps.from_mapping({"name": "s", "grid": axes, **given})
    record = parent.SweepRecord.create(client, config, "/there", "")
    cells = [cell("one", **SIZES), {**cell("two", **SIZES), "repeats": "one"}]
    record.cells([{"reason": "", **each} for each in cells])
    child(client, record.run_id, "two")
    record.end("FINISHED")
    study = reading.sweeps_or_runs(client.tracking_uri, ["s"])[0]
    assert (study.search, study.scheduler, study.objective, study.ranges) == known
    assert [trial.repeats for trial in study.trials] == ["", "one"]


def test_a_store_that_fails_says_why(client: MlflowClient) -> None:
    run_id = child(client, sweep(client, []), "mine", **RESNET, **SIZES)
    client.log_metric(run_id, "test/accuracy", 0.5)

    def refused(table: str, *reads: Callable[[], object]) -> None:
        mlflow_store.alter(client, f"DROP TABLE {table}")
        for read in reads:
            with pytest.raises(ConfigError, match=rf"{client.tracking_uri} does not \(no such table: {table}\)"):
                read()

    uri = client.tracking_uri  # without figures, runs are found, and their histories are not
    refused("metrics", lambda: reading.sweeps_or_runs(uri, ["s"]), lambda: reading.runs(uri, ["mine"]))
    refused("runs", lambda: reading.find_run(client, "mine"), lambda: reading.find_sweep(client, "mine"))


def test_a_sweep_is_searched_by_its_name_the_newest_first(client: MlflowClient) -> None:
    assert reading.find_sweep(client, "its") is None
    named = {parent.KIND_TAG: parent.KIND, SWEEP_TAG: "its"}
    for began, tags in (
        (4, {**named, SWEEP_TAG: "another"}),
        (3, {SWEEP_TAG: "its", FOLDER_TAG: "/of/one/of/its/runs"}),
        (1, {**named, FOLDER_TAG: "/older"}),
    ):
        client.create_run("0", began, tags)
    newest = client.create_run(store.experiment_id(client, "test"), 2, {**named, FOLDER_TAG: "/there"})
    run_id = newest.info.run_id
    for name in ("it's", run_id):
        found = reading.find_sweep(client, name)
        assert found is not None
        assert (found.name, found.run_id, found.folder) == ("its", run_id, "/there")


@pytest.mark.parametrize("per_rank_test", ["True", "False"])
def test_losses_of_every_rank_are_read_where_a_run_was_made_for_them(per_rank_test: str, client: MlflowClient) -> None:
    placed = {"topology": "1x2", "batch_size": "8", "global_batch_size": "16", "per_rank_test": per_rank_test}
    run = child(client, sweep(client, []), "one", **placed, **RESNET)
    for name, value in (("train/loss", 2.0), ("train/loss_rank0", 1.0), ("train/loss_rank1", 3.0)):
        client.log_metric(run, name, value, 5, 20)
    (trial,) = reading.runs(client.tracking_uri, [run]).trials
    ranks = {"train/loss_rank0": [Point(20, 5, 1.0)], "train/loss_rank1": [Point(20, 5, 3.0)]}
    assert trial.history == {"train/loss": [Point(20, 5, 2.0)], **(ranks if per_rank_test == "True" else {})}


@pytest.mark.parametrize(
    ("batches", "wholes", "hold"),
    [(("8", "4"), ("16", "16"), "global_batch"), (("8", "8"), ("16", "16"), ""), (("8", "4"), ("16", "8"), "")],
)
def test_runs_are_compared_in_the_order_given_and_once_each(
    batches: tuple[str, str], wholes: tuple[str, str], hold: str, client: MlflowClient, home: Path
) -> None:
    own = sweep(client, [])
    params = [
        {**RESNET, "topology": "1x2", "batch_size": batch, "global_batch_size": whole}
        for batch, whole in zip(batches, wholes)
    ]
    one, two = (child(client, own, name, **of) for name, of in zip(("one", "two"), params))
    for step, at, figure in ((2, 9, 0.5), (1, 8, 0.25), (1, 7, 0.75)):
        client.log_metric(two, "test/accuracy", figure, at, step)
    load, other = (f"system/node/{part}_utilization_percentage" for part in ("cpu", "disk"))  # the disk is no report's
    for name in (load, other):
        client.log_metric(two, name, 9.0, 1, 0)
    client.log_dict(two, {"classes": ["a", "b"], "counts": [[1, 0], [0, 1]]}, "confusion_matrix.json")
    client.set_terminated(two, "FINISHED")
    client.update_run(one, "SCHEDULED")
    began = "1970-01-01T00:00:00+00:00"
    tags = [{"mlflow.parentRunId": own, KEY_TAG: name, "mlflow.runName": name} for name in ("one", "two")]
    history = {"test/accuracy": [Point(1, 7, 0.75), Point(1, 8, 0.25), Point(2, 9, 0.5)], load: [Point(0, 1, 9.0)]}
    trials = [
        Run(
            "two", two, "FINISHED", params=params[1], tags=tags[1], started=began, history=history,
            metrics={"test/accuracy": 0.5, load: 9.0, other: 9.0}, confusion=[[1, 0], [0, 1]], class_names=("a", "b"),
        ),
        Run("one", one, "PENDING", params=params[0], tags=tags[0], started=began),
    ]  # fmt: skip
    command = f"cifar-ray compare two {one} two"
    found = reading.runs(client.tracking_uri, ["two", one, "two"])
    assert found == Sweep("two, one", trials, store.shown(client.tracking_uri), command, hold)


def test_runs_that_a_limit_has_stopped_are_in_no_table(client: MlflowClient) -> None:
    ends = {"one": "", "two": "max_time", "three": "sweep_max_cost", "four": "patience"}
    own = sweep(client, [cell(name, **SIZES) for name in ends])
    for name, by in ends.items():
        run_id = child(client, own, name, **RESNET, **SIZES)
        if by:
            client.set_tag(run_id, STOPPED_BY_TAG, by)
        client.set_terminated(run_id, "FINISHED")
    study = reading.sweeps_or_runs(client.tracking_uri, ["s"])[0]
    assert [(one.status, one.finished, one.reason) for one in study.trials] == [
        ("FINISHED", True, ""),
        ("STOPPED", False, "stopped by --max-time"),
        ("STOPPED", False, "stopped by the sweep's --max-cost"),
        ("FINISHED", True, ""),
    ]
    told = cautions.cautions(Runs(study))
    assert all(any(part in line for line in told) for part in ("2 of 4 runs did not finish", "ended by --patience"))


def test_what_is_no_training_or_not_there_cannot_be_compared(client: MlflowClient, tmp_path: Path) -> None:
    child(client, sweep(client, []), "bare", **RESNET)
    with pytest.raises(ConfigError, match=r"^run 'bare' .* cannot be compared"):
        reading.runs(client.tracking_uri, ["bare"])
    away = f"sqlite:///{tmp_path}/away.db"
    for uri in (client.tracking_uri, away):
        with pytest.raises(ConfigError, match=f"^there is no run or sweep 'nobody' in {uri}; "):
            reading.sweeps_or_runs(uri, ["nobody"])
    assert not exists(away)


def test_sweeps_and_runs_of_none_are_listed_newest_first(client: MlflowClient, tmp_path: Path) -> None:
    early = child(client, "", "early", 1000, accuracy=0.5, dataset="mnist", model="vit", topology="1x1")
    grid = sweep(client, [], "grid", 2)
    for second, (name, topology) in enumerate({"a": "1x1", "b": "1x2", "c": "1x1"}.items(), 3):
        child(client, grid, name, 1000 * second, accuracy=0.25, model="resnet", topology=topology)
    late = child(client, "", "late", 6000)
    client.create_run("0", 7, run_name="foreign")
    client.delete_run(child(client, "", "deleted", 8000))
    client.set_terminated(early, "FINISHED")
    client.set_terminated(late, "KILLED")
    listed = reading.everything(client.tracking_uri)
    assert [(type(one), one.name, one.run_id, one.state, one.started) for one in listed] == [
        (Run, "late", late, "stopped", "1970-01-01T00:00:06+00:00"),
        (Sweep, "grid", grid, "running", "1970-01-01T00:00:02+00:00"),
        (Run, "early", early, "finished", "1970-01-01T00:00:01+00:00"),
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
    whole, part = child(client, "", "whole", 1000), child(client, "", "part", 2000)
    for step, cost in ((60, 1.5), (120, 2.5)):
        client.log_metric(part, "cost/usd", cost, 0, step)
    client.set_tag(part, STOPPED_BY_TAG, "max_cost")
    for run_id in (whole, part):
        client.set_terminated(run_id, "FINISHED")
    listed = [records.row(one) for one in reading.everything(client.tracking_uri)]
    assert [(one["state"], one["cost_usd"]) for one in listed] == [("stopped", 2.5), ("finished", None)]


def test_a_sweep_whose_runs_have_failed_is_not_finished(client: MlflowClient) -> None:
    grid = sweep(client, [], "grid", 1)
    for second, name, status in ((2, "a", "FAILED"), (3, "b", "FINISHED"), (4, "c", "RUNNING")):
        client.set_terminated(child(client, grid, name, 1000 * second, dataset="digits"), status)

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
    run_id = child(client, sweep(client, [], "grid", 1), "one", 2000)
    client.set_tag(run_id, SWEEP_TAG, "grid")
    sweep(client, [], "empty", 1)
    for name, told in (("grid", "^'grid' is a sweep, and a run is wanted"), ("empty", "there is no run or sweep")):
        with pytest.raises(ConfigError, match=told):
            reading.find_run(client, name)
    assert reading.find_run(client, "one").run_id == run_id
