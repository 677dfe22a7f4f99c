from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from cifar_ray.strict import ConfigError
from cifar_ray.tracking import artifacts, store
from cifar_ray.tracking.guard import Guard
from cifar_ray.tracking.run import finite
from cifar_ray.tracking.sink import Sink


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    store.connect(uri)
    return uri


@pytest.fixture
def client(database: str) -> MlflowClient:
    return store.connect(database)


@pytest.fixture
def run_id(client: MlflowClient) -> str:
    return client.create_run(store.experiment_id(client, "test")).info.run_id


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]


def test_the_store_is_the_one_given_the_variable_or_one_in_the_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.resolve_uri(None) == f"sqlite:///{home}/.cifar_ray/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert store.resolve_uri(None) == "http://tracking:5000"
    assert store.resolve_uri("sqlite:////abs/m.db") == "sqlite:////abs/m.db"


@pytest.mark.parametrize(
    "uri", ["mlruns", "./mlruns", "sqlite:///mlflow.db", "sqlite+pysqlite:///m.db", "file:///tmp/mlruns", "sqlite://"]
)
def test_a_relative_store_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        store.resolve_uri(uri)
    assert caught.value.as_flag().startswith(
        "--tracking-uri must be http(s)://HOST:PORT or sqlite:////absolute/path.db"
    )


@pytest.mark.parametrize("uri", ["https://me:secret@host:5000", "postgresql://me:secret@host/mlflow"])
def test_a_password_in_the_address_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError, match="must not have a password in it") as caught:
        store.resolve_uri(uri)
    assert "secret" not in str(caught.value)
    assert store.resolve_uri("postgresql://me@host/mlflow") == "postgresql://me@host/mlflow"


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where connections are taken and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_store_that_is_not_there_is_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:9 does not \(.*Connection refused\)"):
        store.connect("http://127.0.0.1:9")


def test_a_store_that_never_answers_is_refused_within_10_s(home: Path, silent: int) -> None:
    refused = threading.Event()

    def connect() -> None:
        with contextlib.suppress(ConfigError):
            store.connect(f"http://127.0.0.1:{silent}")
        refused.set()

    threading.Thread(target=connect, daemon=True).start()
    assert refused.wait(10)


def test_a_database_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_text("this is no database, it only has its name")
    (tmp_path / "folder").mkdir()
    for name in ("m.db", "folder"):
        with pytest.raises(ConfigError, match="tracking_uri must be a store that answers"):
            store.connect(f"sqlite:///{tmp_path}/{name}")


def test_artifacts_lie_beside_the_database(client: MlflowClient, database: str) -> None:
    experiment = client.get_experiment(store.experiment_id(client, "an experiment/with signs"))
    assert (
        experiment.artifact_location
        == f"{Path(database.removeprefix('sqlite:///')).parent}/artifacts/an_experiment_with_signs"
    )
    assert store.experiment_id(client, "an experiment/with signs") == experiment.experiment_id


def test_a_deleted_experiment_is_said(client: MlflowClient) -> None:
    client.delete_experiment(store.experiment_id(client, "gone"))
    with pytest.raises(ConfigError, match="experiment must not be a deleted one"):
        store.experiment_id(client, "gone")


def test_a_run_is_found_by_name_and_by_id(client: MlflowClient, tmp_path: Path) -> None:
    experiment = store.experiment_id(client, "test")
    tags = {store.KEY_TAG: "k1", store.FOLDER_TAG: str(tmp_path)}
    made = client.create_run(experiment, run_name="mine", tags=tags)
    client.create_run(experiment, run_name="foreign")
    for by in ("mine", made.info.run_id):
        assert store.find(client, by) == store.KnownRun(made.info.run_id, "mine", "k1", str(tmp_path), "RUNNING")
    for absent in ("foreign", "nobody", "0" * 32, "it's"):
        with pytest.raises(ConfigError, match="there is no run"):
            store.find(client, absent)
    twin = client.create_run(experiment, run_name="mine", tags={store.KEY_TAG: "k2"})
    with pytest.raises(ConfigError, match=rf"there are 2 runs named 'mine'; .*{twin.info.run_id}"):
        store.find(client, "mine")
    found = store.find_key(client, "k1")
    assert found is not None
    assert found.info.run_id == made.info.run_id
    client.delete_run(twin.info.run_id)
    assert store.find(client, "mine").run_id == made.info.run_id
    with pytest.raises(ConfigError, match="there is no run"):
        store.find(client, twin.info.run_id)


def test_what_is_recorded_again_after_a_resume_is_there_once(client: MlflowClient, run_id: str) -> None:
    first = Sink(client, run_id)
    for step in (1, 2, 3):
        first.metrics(step, 1000 + step, {"loss": step / 10})
    assert first.close("KILLED", patience_s=20)
    second = Sink(client, run_id)
    for step in (2, 3, 4):
        second.metrics(step, 9000 + step, {"loss": step / 10, "new": 1.0})
    assert second.close("FINISHED", patience_s=20)
    assert history(client, run_id, "loss") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert [step for step, _ in history(client, run_id, "new")] == [2, 3, 4]
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_parameter_keeps_its_first_value(client: MlflowClient, run_id: str) -> None:
    for value in ("1x2", "1x4"):
        sink = Sink(client, run_id)
        sink.params({"topology": value, "seed": "0"})
        assert sink.close("FINISHED", patience_s=20)
    assert client.get_run(run_id).data.params == {"topology": "1x2", "seed": "0"}


def test_what_the_store_refuses_does_not_hold_up_the_rest(client: MlflowClient, run_id: str) -> None:
    sink = Sink(client, run_id)
    sink.metrics(1, 1, {"a" * 300: 1.0})  # longer than MLflow takes
    sink.tags({"later": "yes"})
    while not sink.refused:
        time.sleep(0.05)
        assert sink._thread.is_alive()
    sink.metrics(2, 2, {"loss": 0.5})
    assert sink.close("FINISHED", patience_s=20)
    assert len(sink.refused) == 1
    assert history(client, run_id, "loss") == [(2, 0.5)]
    assert client.get_run(run_id).data.tags["later"] == "yes"
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_store_that_is_away_is_waited_for(client: MlflowClient, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is tried again, in its place, until it can be."""
    asked = threading.Semaphore(0)

    def away(*_: object) -> None:
        asked.release()
        raise ConnectionError("connection refused")

    flaky = MlflowClient(client.tracking_uri)
    monkeypatch.setattr(flaky, "get_run", away)
    calls = []

    def job(client: MlflowClient, run_id: str) -> None:
        calls.append(run_id)
        client.get_run(run_id)

    sink = Sink(flaky, run_id)
    sink.call(job)
    sink.tags({"after": "yes"})
    for _ in range(6):  # more often than what fails though the store answers is tried
        assert asked.acquire(timeout=60)
    assert sink.trouble == "connection refused"
    assert "after" not in client.get_run(run_id).data.tags
    monkeypatch.undo()
    assert sink.close("FINISHED", patience_s=60)
    assert len(calls) >= 4
    assert sink.refused == []
    assert client.get_run(run_id).data.tags["after"] == "yes"


def test_a_store_that_stays_away_is_given_up_at_the_end(
    client: MlflowClient, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = MlflowClient(client.tracking_uri)
    for name in ("get_run", "log_batch", "set_terminated"):
        monkeypatch.setattr(away, name, absent)
    sink = Sink(away, run_id)
    sink.tags({"never": "seen"})
    assert not sink.close("FINISHED", patience_s=0.5)
    assert sink.trouble == "still away"
    assert client.get_run(run_id).info.status == "RUNNING"


def absent(*_: object, **__: object) -> None:
    raise ConnectionError("still away")


def test_what_fails_though_the_store_answers_does_not_hold_up_the_rest(client: MlflowClient, run_id: str) -> None:
    """Such as an artifact for which there is no room."""
    calls = []

    def job(client: MlflowClient, run_id: str) -> None:
        calls.append(run_id)
        raise OSError("no space left on device")

    sink = Sink(client, run_id)
    sink.call(job)
    sink.metrics(1, 1, {"loss": 0.5})
    assert sink.close("FINISHED", patience_s=0.5)
    assert (len(calls), sink.refused) == (3, ["no space left on device"])
    assert history(client, run_id, "loss") == [(1, 0.5)]
    assert client.get_run(run_id).info.status == "FINISHED"


def test_what_is_slow_is_waited_for(client: MlflowClient, run_id: str) -> None:
    sink = Sink(client, run_id)
    sink.call(lambda client, run_id: time.sleep(0.5))
    sink.tags({"after": "yes"})
    assert sink.close("FINISHED", patience_s=0.1)
    assert client.get_run(run_id).data.tags["after"] == "yes"


def test_only_finite_numbers_are_recorded() -> None:
    assert finite({"a": 1, "b": float("nan"), "c": float("-inf")}) == {"a": 1.0}


def test_checkpoints_are_listed_once_each(client: MlflowClient, run_id: str) -> None:
    for steps in ((10, 20), (20, 30)):  # two processes, the second resuming from before what the first wrote last
        listed = artifacts.CheckpointList()
        for step in steps:
            listed.add({"step": step})
        listed.write(client, run_id)
        listed.write(client, run_id)
    assert [entry["step"] for entry in artifacts._checkpoints(client, run_id)] == [10, 20, 30]


def test_the_confusion_matrix_shows_every_count(tmp_path: Path) -> None:
    figure = artifacts.confusion_figure([[5, 1], [0, 4]], ["cat", "dog"])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["5", "1", "0", "4"]
    figure.savefig(tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 1000
    crowded = artifacts.confusion_figure([[1] * 100] * 100, [str(i) for i in range(100)])
    assert len(crowded.axes[0].texts) == 0


DRIVER = """
import sys, time
from cifar_ray.tracking.guard import Guard
guard = Guard(*sys.argv[1:4])
guard._starter.wait()
print(guard._starter.pid, flush=True)
time.sleep(60)
"""


def of_session(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


def status_within(client: MlflowClient, run_id: str, status: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if client.get_run(run_id).info.status == status:
            return True
        time.sleep(0.2)
    return False


@pytest.mark.fault
def test_a_driver_that_is_killed_leaves_its_run_killed(client: MlflowClient, run_id: str, database: str) -> None:
    client.set_tag(run_id, store.SESSION_TAG, "s1")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, database, run_id, "s1"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    session = int(driver.stdout.readline())
    (guard,) = of_session(session)
    assert guard not in psutil.Process(driver.pid).children(recursive=True)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert status_within(client, run_id, "KILLED", 30)
    for _ in range(100):
        if not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE:  # its new parent may be slow
            return
        time.sleep(0.1)
    pytest.fail("the guard outlived its run")


@pytest.mark.fault
def test_a_guard_ends_the_run_that_its_driver_could_not_end(client: MlflowClient, run_id: str, database: str) -> None:
    client.set_tag(run_id, store.SESSION_TAG, "s1")
    file = Path(database.removeprefix("sqlite:///"))
    guard = Guard(database, run_id, "s1")
    away = file.rename(file.with_suffix(".away"))
    file.mkdir()  # what answers is no database
    guard.hand_over("FAILED")
    time.sleep(8)
    assert not guard.wait(0)
    file.rmdir()
    away.rename(file)
    assert status_within(client, run_id, "FAILED", 60)
    assert guard.wait(30)


def test_a_guard_that_is_dismissed_changes_nothing(client: MlflowClient, run_id: str, database: str) -> None:
    client.set_tag(run_id, store.SESSION_TAG, "s1")
    guard = Guard(database, run_id, "s1")
    guard.dismiss()
    assert guard.wait(0)
    assert client.get_run(run_id).info.status == "RUNNING"


@pytest.mark.fault
def test_a_guard_leaves_a_run_alone_that_another_driver_has_taken_over(
    client: MlflowClient, run_id: str, database: str
) -> None:
    client.set_tag(run_id, store.SESSION_TAG, "s2")
    guard = Guard(database, run_id, "s1")
    assert guard._starter.stdin is not None
    guard._starter.stdin.close()
    assert guard.wait(30)
    assert client.get_run(run_id).info.status == "RUNNING"
