"""MLflow stores for fast tests: each is a copy of one empty SQLite database."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from cifar_ray import tracking
from cifar_ray.tracking import quieten, record, store
from cifar_ray.tracking.record import Record


@cache
def empty_database() -> bytes:
    """A database with MLflow's tables and no runs. MLflow takes seconds to make one, so a process does it once."""
    quieten(verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        store.connect(f"sqlite:///{folder}/new/mlflow.db")  # which makes its folder, too
        return Path(folder, "new", "mlflow.db").read_bytes()


def new_store(folder: Path) -> MlflowClient:
    """The client of an empty store in this folder."""
    (folder / "mlflow.db").write_bytes(empty_database())
    return store.connect(f"sqlite:///{folder}/mlflow.db")


@contextmanager
def as_default(uri: str) -> Iterator[None]:
    """Context manager: MLflow's functions that take no client work on ``uri``."""
    with tracking.unchanged():
        mlflow.set_tracking_uri(uri)
        yield


def unguarded(client: MlflowClient, begin: Callable[[MlflowClient], Run]) -> Record:
    """A record of a run that no process ends when this one is killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "Guard", lambda *_: SimpleNamespace(conclude=lambda written, _: written))
        return Record(client, "session", begin)


def alter(client: MlflowClient, statement: str) -> None:
    """Change the database behind the client's back, by one SQL statement."""
    with closing(sqlite3.connect(client.tracking_uri.removeprefix("sqlite:///"))) as database:
        database.execute(statement)
        database.commit()


def refuse(client: MlflowClient, what: str) -> None:
    """Have the database refuse ``what``, such as ``INSERT ON runs``, for there is "no room"."""
    alter(client, f"CREATE TRIGGER full BEFORE {what} BEGIN SELECT RAISE(ABORT, 'no room'); END")


def only_run(client: MlflowClient) -> Run:
    """The only run in the store, with what a search does not give."""
    (found,) = client.search_runs(store.all_experiments(client))
    return client.get_run(found.info.run_id)


def points(client: MlflowClient, run_id: str) -> list[tuple[str, int, int, float]]:
    """Every figure of a run: its name, step, time in milliseconds and value, by name and step."""
    names = client.get_run(run_id).data.metrics
    found = [point for name in names for point in client.get_metric_history(run_id, name)]
    return sorted((point.key, point.step, point.timestamp, point.value) for point in found)


def steps(client: MlflowClient, run_id: str) -> list[tuple[str, int]]:
    """Names and steps of a run's figures."""
    return [(name, step) for name, step, _, _ in points(client, run_id)]


def files(client: MlflowClient, run_id: str) -> set[str]:
    """Names of a run's artifacts."""
    return {file.path for file in client.list_artifacts(run_id)}


def text(client: MlflowClient, run_id: str, name: str) -> str:
    """An artifact's text."""
    return Path(client.download_artifacts(run_id, name)).read_text(encoding="utf-8")


def value(client: MlflowClient, run_id: str, name: str) -> Any:
    """What a JSON artifact holds."""
    return json.loads(text(client, run_id, name))
