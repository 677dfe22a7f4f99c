"""The tracking store: its address, what is said of one that does not answer, and how runs are found in it."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import threading
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

from cifar_ray import tracking
from cifar_ray.config.errors import ConfigError
from cifar_ray.tracking import reading, store
from cifar_ray.tracking.study import FOLDER_TAG, KEY_TAG
from cifar_ray.tracking.uri import exists, resolve_uri
from tests.support import mlflow_store


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        (None, None, "sqlite:///{home}/.cifar_ray/mlflow.db"),
        (None, "http://tracking:5000", "http://tracking:5000"),
        ("sqlite:////abs/m.db", "http://tracking:5000", "sqlite:////abs/m.db"),
        ("sqlite:////abs/m.db?timeout=9", None, "sqlite:////abs/m.db?timeout=9"),
        ("postgresql+psycopg2://me@host/db", None, "postgresql+psycopg2://me@host/db"),
    ],
)
def test_the_store_is_the_one_given_the_variable_or_one_in_the_home(
    given: str | None, variable: str | None, expected: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    assert resolve_uri(given) == expected.format(home=home)


@pytest.mark.parametrize(
    "uri", ["mlruns", "sqlite:///mlflow.db", "sqlite+pysqlite:///m.db", "file:///tmp/mlruns", "sqlite://"]
)
def test_a_relative_store_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"^tracking_uri must be "):
        resolve_uri(uri)


@pytest.mark.parametrize("uri", ["https://me:hunter2@host:5000", "http://host?token=hunter2"])
def test_a_secret_in_the_address_is_refused_and_not_repeated(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for given in (uri, None):
        with pytest.raises(ConfigError, match=r"^tracking_uri must not have a ") as caught:
            resolve_uri(given)
        assert "hunter2" not in str(caught.value)


def test_a_server_that_is_away_or_silent_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_REMOTE_TIMEOUT_S", 60)  # a busy machine may take as long to hear of a refusal
    with tracking.unchanged(), pytest.raises(ConfigError, match=r"http://127.0.0.1:9 does not .*Connection refused"):
        store.connect("http://127.0.0.1:9")
    monkeypatch.setattr(store, "_REMOTE_TIMEOUT_S", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ConfigError, match=r"does not \(no answer within 0.1 s\)$"),
    ):
        store.connect(f"http://127.0.0.1:{silent.getsockname()[1]}")


class Answer(http.server.BaseHTTPRequestHandler):
    """A server of MLflow's with nothing in it."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"experiments": []}')

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_of_this_machine_is_asked_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_REMOTE_TIMEOUT_S", 60)
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tracking.settings():
            assert store.connect(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "no_proxy" not in os.environ


def test_a_database_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_text("this is no database, it only has its name")
    (tmp_path / "folder").mkdir()
    for name, reason in (("m.db", "file is not a database"), ("folder", "unable to open database file")):
        with pytest.raises(ConfigError, match=rf"^tracking_uri must be .*/{name} does not \({reason}\)$"):
            store.connect(f"sqlite:///{tmp_path}/{name}")


def test_an_experiments_artifacts_lie_beside_the_database(client: MlflowClient, tmp_path: Path) -> None:
    made = store.experiment_id(client, "an experiment/with signs")
    experiment = client.get_experiment(made)
    assert experiment.artifact_location == f"{tmp_path}/artifacts/an_experiment_with_signs"
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert store.experiment_id(client, "an experiment/with signs") == made
    client.delete_experiment(made)
    with pytest.raises(ConfigError, match="is deleted; restore 'an experiment/with signs' in MLflow"):
        store.experiment_id(client, "an experiment/with signs")
    assert store.all_experiments(client) == ["0"]


def test_an_experiment_just_made_elsewhere_is_taken(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    look = client.get_experiment_by_name

    def too_early(name: str) -> Any:
        if (found := look(name)) is None:
            made.append(MlflowClient(client.tracking_uri).create_experiment(name))
        return found

    monkeypatch.setattr(client, "get_experiment_by_name", too_early)
    assert [store.experiment_id(client, "mine")] == made


def test_a_run_is_found_by_its_name_or_id(client: MlflowClient) -> None:
    def refused(run: str, told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            reading.open_run(client.tracking_uri, run)

    experiment = store.experiment_id(client, "test")
    mine = client.create_run(experiment, 1, {KEY_TAG: "k1", FOLDER_TAG: "/there"}, "mine").info.run_id
    client.create_run(experiment, run_name="foreign")
    opened, known = reading.open_run(client.tracking_uri, "mine")
    assert opened.tracking_uri == client.tracking_uri
    assert (known.run_id, known.name, known.key, known.folder) == (mine, "mine", "k1", "/there")
    assert (known.status, known.state, known.started) == ("RUNNING", "running", "1970-01-01T00:00:00+00:00")
    for by in (mine, "m'ine"):  # a quote would end the query's text
        assert reading.find_run(client, by) == known
    for absent in ("foreign", "0" * 32):
        refused(absent, f"^there is no run or sweep '{absent}' in {client.tracking_uri}; ")
    twin = client.create_run("0", 2, {KEY_TAG: "k2", "cifar_ray.sweep": "s"}, "mine").info.run_id
    refused("mine", rf"^there are 2 runs named 'mine'; take one of their ids: {twin} \(of sweep s\), {mine}$")
    assert reading.find_run(client, twin).folder == ""
    client.delete_run(twin)
    assert reading.find_run(client, "mine") == known
    refused(twin, "there is no run or sweep")


def test_a_run_is_found_by_its_key_the_oldest_of_several(client: MlflowClient, tmp_path: Path) -> None:
    for began in (3, 1, 2):
        client.create_run("0", began, {KEY_TAG: "k"}, f"began at {began}")
    found = reading.with_key(client.tracking_uri, "k")
    assert found is not None
    assert (found.name, found.key, found.folder, found.status) == ("began at 1", "k", "", "RUNNING")
    assert reading.with_key(client.tracking_uri, "another") is None
    away = f"sqlite:///{tmp_path}/away.db"
    assert reading.with_key(away, "k") is None
    assert not exists(away)
    assert exists("http://127.0.0.1:9")  # only a request would tell
    mlflow_store.alter(client, "DROP TABLE runs")
    with pytest.raises(ConfigError, match=r"does not \(no such table: runs\)"):
        reading.with_key(client.tracking_uri, "k")


def test_a_run_in_the_oldest_of_many_experiments_is_found(client: MlflowClient) -> None:
    """MLflow answers with 1,000 experiments at a time."""
    client.create_run("0", tags={KEY_TAG: "k"}, run_name="old")
    later = "1 << 50, 1 << 50, 'active'"
    counted = "WITH RECURSIVE numbers(n) AS (VALUES(1) UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000)"
    mlflow_store.alter(
        client,
        "INSERT INTO experiments (name, creation_time, last_update_time, lifecycle_stage) "
        f"{counted} SELECT 'team' || n, {later} FROM numbers",
    )
    assert reading.find_run(client, "old").key == "k"
    assert [run.name for run in reading.everything(client.tracking_uri)] == ["old"]


def test_mlflows_own_functions_work_on_a_store_for_a_while(client: MlflowClient, home: Path) -> None:
    before = mlflow.get_tracking_uri()
    with contextlib.suppress(OSError), tracking.unchanged():
        mlflow.set_tracking_uri(client.tracking_uri)
        assert mlflow.get_tracking_uri() == client.tracking_uri
        raise OSError
    assert (mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")) == (before, None)
