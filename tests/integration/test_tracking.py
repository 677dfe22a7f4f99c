from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import mlflow
import numpy as np
import psutil
import pytest
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, get_error_code
from PIL import Image

from cifar_ray import data, storage, tasks, tracking
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.runs import checkpoints, use
from cifar_ray.runs.folder import RunFolder
from cifar_ray.tracking import artifacts, registry, store
from cifar_ray.tracking.guard import Guard
from cifar_ray.tracking.record import SENT_TAG, Record, _is_refusal
from cifar_ray.tracking.run import RunRecord, finite
from cifar_ray.tracking.study import FOLDER_TAG, KEY_TAG, Run
from cifar_ray.training import checkpoint, predictor
from cifar_ray.training.observer import Row, SavedCheckpoint, Started
from tests.support import mlflow_store
from tests.support.helpers import decided_of, png, resolved, train_here


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """A store of the test's own, whose file it may harm; what fails is tried again soon."""
    monkeypatch.setattr("cifar_ray.tracking.record._FIRST_RETRY_S", 0.05)
    return mlflow_store.new_store(tmp_path)


@pytest.fixture
def run_id(client: MlflowClient) -> str:
    return client.create_run(store.experiment_id(client, "test")).info.run_id


def file_of(client: MlflowClient) -> Path:
    return Path(client.tracking_uri.removeprefix("sqlite:///"))


@contextlib.contextmanager
def away(client: MlflowClient) -> Iterator[None]:
    """Context manager: move the database away, so that open connections still read and writes fail."""
    file = file_of(client)
    moved = file.rename(file.with_suffix(".away"))
    try:
        yield
    finally:
        moved.rename(file)


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]


def sink_of(client: MlflowClient, run_id: str) -> Record:
    return mlflow_store.unguarded(client, lambda client: client.get_run(run_id))


def row(step: int, timestamp_ms: int, **metrics: float) -> Row:
    return Row("iteration", step, timestamp_ms, metrics)


def test_nothing_is_lost_of_many_figures_of_which_a_part_arrived(
    client: MlflowClient, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag that says how far the rows were sent comes with the last part."""
    flaky = MlflowClient(client.tracking_uri)
    write, sent = flaky.log_batch, []

    def fail_once(run_id: str, metrics: list, tags: list, **others: object) -> None:
        sent.append((len(metrics), len(tags)))
        write(run_id, metrics=metrics, tags=tags, **others)
        if len(sent) == 1:
            raise ConnectionError("no answer")

    monkeypatch.setattr(flaky, "log_batch", fail_once)
    sink = mlflow_store.unguarded(flaky, lambda _: client.get_run(run_id))
    sink.write_row(row(1, 1, **{f"m{index}": 1.0 for index in range(1200)}))
    assert sink.end("FINISHED", patience_s=60)
    assert sent == [(999, 0), (999, 0), (201, 1)]
    assert history(client, run_id, "m0") == [(1, 1.0)]
    run = client.get_run(run_id).data
    assert (len(run.metrics), run.tags[SENT_TAG]) == (1200, '{"iteration": 1}')


def test_what_a_server_refuses_is_not_tried_again_and_what_it_is_too_busy_for_is() -> None:
    refused = {
        status
        for status in (400, 401, 404, 408, 409, 429, 500, 503)
        if _is_refusal(MlflowException("no", get_error_code(status)))
    }
    assert refused == {400, 401, 404, 409}
    assert not _is_refusal(ConnectionError("gone"))


@pytest.fixture
def config(small: TrainConfig) -> TrainConfig:
    return replace(small, device="cpu")


def begin(client: MlflowClient, config: TrainConfig, digits: Dataset, folder: Path) -> RunRecord:
    named = {"name": "mi.ne", "key": "k", "folder": str(folder)}
    return RunRecord(client, config, decided_of(config), **named, dataset=digits, begun=time.time())


def started(config: TrainConfig, step: int, *history: Row) -> Started:
    return Started(decided_of(config), step, steps_per_epoch=30, history=history)


def loss(step: int, value: float) -> Row:
    return Row.now("iteration", step, {"train/loss": value})


def test_mlflow_has_what_led_to_the_final_weights_although_it_was_away(
    client: MlflowClient, config: TrainConfig, digits: Dataset, tmp_path: Path
) -> None:
    record = begin(client, config, digits, tmp_path)
    kept = [loss(5, 0.5), loss(10, 0.4)]
    with away(client):
        record.started(started(config, 0))
        for row in kept:
            record.row(row)
        record.checkpoint(SavedCheckpoint(tmp_path / "step-00000012", 12, 0, "a"))
        record.row(loss(15, 9.9))  # of steps that are lost
        record.row(loss(20, 9.9))
        record.started(started(config, 12, *kept))
        record.row(loss(15, 0.3))
    record.row(loss(20, 0.2))
    record.checkpoint(SavedCheckpoint(tmp_path / "step-00000030", 30, 1, "b", 0.9))
    record.row(Row.now("epoch", 1, {"test/accuracy": 0.9}))
    record.row(loss(35, 9.9))  # no checkpoint has it
    assert record.end("KILLED")
    assert history(client, record.run_id, "train/loss") == [(5, 0.5), (10, 0.4), (15, 0.3), (20, 0.2)]
    assert history(client, record.run_id, "test/accuracy") == [(1, 0.9)]


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_checkpoints_become_models_of_the_run(
    client: MlflowClient, config: TrainConfig, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    outcome = train_here(config, digits, tmp_path / "checkpoints").at(time.time())
    first, last = checkpoint.every(tmp_path / "checkpoints")
    record = begin(client, config, digits, tmp_path)
    record.result(outcome, digits)
    kept = storage.at(str(tmp_path))
    for which, name, epoch in (("final", last.name, 2), ("final", last.name, 2), ("best", first.name, 1)):
        record.model(which, partial(checkpoints.load, kept, name), digits, epoch)
    theirs, ended = {mlflow.get_tracking_uri()}, threading.Event()

    def log() -> None:  # as code of the user's would meanwhile, to the store that is set
        while not ended.wait(0.001):
            theirs.add(mlflow.get_tracking_uri())

    thread = threading.Thread(target=log)
    thread.start()
    assert record.end("FINISHED")
    ended.set()
    thread.join()
    assert len(theirs) == 1
    run = client.get_run(record.run_id)
    best, final = artifacts.logged_models(client, run)
    epochs = {output.model_id: output.step for output in run.outputs.model_outputs}
    assert epochs == {best.model_id: 1, final.model_id: 2}
    assert (best.name, final.name) == ("mi_ne-best", "mi_ne")  # MLflow takes no dot
    images = digits.test.inputs[:20]
    for model, path in ((best, first), (final, last)):
        assert model.tags["weights_sha256"] == checkpoint.read(path).weights_sha256
        with mlflow_store.as_default(client.tracking_uri):
            loaded = mlflow.pyfunc.load_model(model.model_uri)
            example = loaded.metadata.load_input_example(model.model_uri)
            required = Path(mlflow.pyfunc.get_model_dependencies(model.model_uri)).read_text().split()
        expected = predictor.of(path)(torch.from_numpy(images)).detach().numpy()
        answers = loaded.predict({"image": [png(pixels[::4, ::4, 0]) for pixels in images]})
        found = np.array([[row[name] for name in digits.spec.names] for row in answers.probabilities])
        assert found == pytest.approx(expected, abs=1e-5)
        assert list(answers.label) == [digits.spec.names[row.argmax()] for row in found]
        assert list(answers.probability) == list(found.max(1))
        assert len(loaded.predict({"image": [png(images[0])]})) == 1
        assert (model.params, model.model_type) == (run.data.params, "classifier")
        assert (loaded.metadata.model_id, loaded.metadata.run_id) == (model.model_id, record.run_id)
        assert loaded.metadata.metadata == {"dataset": "digits", "dataset_digest": digits.spec.digest}
        (measured,) = {metric.value for metric in model.metrics if metric.key == "test/accuracy"}
        rows = {row.step: row.metrics for row in outcome.history if row.kind == "epoch"}
        assert measured == rows[epochs[model.model_id]]["test/accuracy"]
        assert loaded.metadata.get_output_schema().input_names() == ["label", "probability", "probabilities"]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(example.image[0]))), images[0])
        assert set(required) == {
            f"{name}=={metadata.version(name).partition('+')[0]}" for name in ("torch", "mlflow", "numpy", "pillow")
        }
    registered = registry.register(record.run_id, "taken", None, client.tracking_uri)
    assert client.get_model_version("taken", str(registered.version)).tags["weights_sha256"] == outcome.weights_sha256


def test_the_models_that_are_asked_for_are_logged(config: TrainConfig, digits: Dataset) -> None:
    asked: list[str] = []
    record = SimpleNamespace(task=tasks.USUAL, result=lambda *_: None, model=lambda which, *_: asked.append(which))
    kept = {"epochs": 2, "checkpoint": "c/step-00000002", "stopped_by": "", "untested": ""}
    for wanted, best, logged in (
        ("none", 1, []),
        ("final", 1, ["final"]),
        ("best", 2, ["best"]),
        ("all", 1, ["best", "final"]),
        ("all", 2, ["final"]),
    ):
        asked.clear()
        given, outcome = (
            replace(config, log_models=wanted),
            SimpleNamespace(**kept, metrics={"chosen/epoch": float(best)}),
        )
        RunSession(given, decided_of(given), digits, SimpleNamespace(folder=None), record, None).finish(outcome)
        assert asked == logged


def test_a_store_that_takes_no_writes_is_given_up_once_for_all_that_waits(
    client: MlflowClient, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answers reads."""
    tracking.quieten(verbose=False)
    sink, tries = sink_of(client, run_id), []
    with away(client):
        for index in range(10):
            sink.call(lambda client, run_id: tries.append(run_id))
            sink.tags({f"never{index}": "seen"})
        assert not sink.end("FINISHED", patience_s=2)
        assert len(tries) == 1  # nothing after the first that fails
        assert sink.refused == []
    assert "Traceback" not in capsys.readouterr().err
    assert client.get_run(run_id).info.status == "RUNNING"


def test_a_parameter_keeps_its_first_value(client: MlflowClient, run_id: str) -> None:
    for value in ("1x2", "1x4"):
        sink = sink_of(client, run_id)
        sink.params({"topology": value, "seed": "0"})
        assert sink.end("FINISHED", patience_s=20)
    assert client.get_run(run_id).data.params == {"topology": "1x2", "seed": "0"}


def test_what_the_store_refuses_or_has_no_room_for_does_not_hold_up_the_rest(client: MlflowClient, run_id: str) -> None:
    calls = []

    def job(client: MlflowClient, run_id: str) -> None:
        calls.append(run_id)
        raise OSError("no space left on device")

    sink = sink_of(client, run_id)
    sink.write_row(row(1, 1, **{"a" * 300: 1.0}))  # longer than MLflow takes
    sink.tags({"later": "yes"})
    wait_for(lambda: len(sink.refused) > 0)
    sink.call(job)
    sink.write_row(row(2, 2, loss=0.5))
    assert sink.end("FINISHED", patience_s=20)
    assert (len(calls), len(sink.refused), sink.refused[1]) == (3, 2, "no space left on device")
    assert history(client, run_id, "loss") == [(2, 0.5)]
    run = client.get_run(run_id)
    assert (run.data.tags["later"], run.info.status) == ("yes", "FINISHED")


def test_a_store_that_is_away_is_waited_for(client: MlflowClient, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is tried again, in its place, until it can be."""
    asked = threading.Semaphore(0)

    def refuse(*_: object) -> None:
        asked.release()
        raise ConnectionError("connection refused")

    flaky = MlflowClient(client.tracking_uri)
    for name in ("get_run", "set_tag"):
        monkeypatch.setattr(flaky, name, refuse)
    calls = []

    def job(client: MlflowClient, run_id: str) -> None:
        calls.append(run_id)
        client.get_run(run_id)

    sink = mlflow_store.unguarded(flaky, lambda _: client.get_run(run_id))
    sink.call(job)
    sink.tags({"after": "yes"})
    for _ in range(6):  # more often than what fails though the store answers is tried
        assert asked.acquire(timeout=60)
    assert sink.trouble == "connection refused"
    assert "after" not in client.get_run(run_id).data.tags
    monkeypatch.undo()
    assert sink.end("FINISHED", patience_s=60)
    assert len(calls) >= 4
    assert sink.refused == []
    assert client.get_run(run_id).data.tags["after"] == "yes"


def test_what_is_slow_is_waited_for(client: MlflowClient, run_id: str) -> None:
    sink = sink_of(client, run_id)
    sink.call(lambda client, run_id: time.sleep(0.5))
    sink.tags({"after": "yes"})
    assert sink.end("FINISHED", patience_s=0.1)
    assert client.get_run(run_id).data.tags["after"] == "yes"


def test_only_finite_numbers_are_recorded() -> None:
    assert finite({"a": 1, "b": float("nan"), "c": float("-inf")}) == {"a": 1.0}


def test_checkpoints_are_listed_once_each(client: MlflowClient, run_id: str) -> None:
    record = Record(client, "session", lambda client: client.get_run(run_id))
    for step in (20, 10, 20, 30):
        record.list_checkpoint({"step": step})
    assert record.end("KILLED")
    listed = store.read_json(client, run_id, "checkpoints.json")["checkpoints"]
    assert [entry["step"] for entry in listed] == [10, 20, 30]


DRIVER = """
import sys, time
from cifar_ray.tracking.guard import Guard
from cifar_ray.runs.folder import RunFolder
from cifar_ray.runs import use
guard = Guard(*sys.argv[1:3])
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


def wait_for_status(client: MlflowClient, run_id: str, status: str) -> None:
    wait_for(lambda: client.get_run(run_id).info.status == status)


@pytest.mark.fault
def test_a_driver_that_is_killed_leaves_its_run_killed(client: MlflowClient, run_id: str, tmp_path: Path) -> None:
    client.set_tag(run_id, store.SESSION_TAG, "s1")
    (folder := tmp_path / "ray_tune").mkdir()  # that of a sweep's cell, which Ray removes
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, client.tracking_uri, "s1"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=folder,
    )
    assert driver.stdout is not None
    session = int(driver.stdout.readline())
    (guard,) = of_session(session)
    assert guard not in psutil.Process(driver.pid).children(recursive=True)
    folder.rmdir()
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_for_status(client, run_id, "KILLED")
    wait_for(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE)  # its new parent may be slow


@pytest.mark.fault
def test_a_guard_ends_the_run_that_its_driver_could_not_end(client: MlflowClient, run_id: str) -> None:
    client.set_tag(run_id, store.SESSION_TAG, "s1")
    file = file_of(client)
    guard = Guard(client.tracking_uri, "s1")
    moved = file.rename(file.with_suffix(".away"))
    file.mkdir()  # what answers is no database
    guard.conclude(False, "FAILED")
    with pytest.raises(subprocess.TimeoutExpired):
        guard._starter.communicate(timeout=8)
    file.rmdir()
    moved.rename(file)
    wait_for_status(client, run_id, "FAILED")
    guard._starter.communicate(timeout=30)


def test_a_guard_that_is_dismissed_changes_nothing(client: MlflowClient, run_id: str) -> None:
    client.set_tag(run_id, store.SESSION_TAG, "s1")
    guard = Guard(client.tracking_uri, "s1")
    assert guard.conclude(True, "FINISHED")
    assert guard._starter.returncode == 0
    assert client.get_run(run_id).info.status == "RUNNING"


def test_a_run_that_mlflow_has_lost_is_found_by_its_folder(
    home: Path, config: TrainConfig, digits: Dataset, tmp_path: Path
) -> None:
    config = replace(config, run_name="mine")
    folder, held = RunFolder.create(config, decided_of(config))
    held.release()
    train_here(config, digits, Path(folder.address) / "checkpoints")
    uri, notes = f"sqlite:///{tmp_path}/lost.db", []
    for named in ("mine", folder.address):
        known = Run("mine", "", "", tags={KEY_TAG: folder.key, FOLDER_TAG: folder.address})
        assert use.find_run(named, uri, notes.append) == (known, uri)
    assert notes[0] == f"MLflow at {uri} does not have run 'mine', which is in {folder.address}"
    scored = use.evaluate("mine", "last", None, uri, notes.append)
    assert scored.recorded_score == scored.metrics["accuracy"]
    assert scored.images == 360
    assert not (tmp_path / "lost.db").exists()
    for absent in ("nobody", str(tmp_path), "no/where", "s3:/x"):
        with pytest.raises(ConfigError, match=f"there is no run or sweep '{absent}' in {uri}"):
            use.find_run(absent, uri, notes.append)


def test_photos_have_the_loss_of_their_predictions(home: Path, tmp_path: Path) -> None:
    stripes = np.indices((900, 1200)).sum(0)
    for half in ("train", "test"):
        for name, step in (("narrow", 11), ("wide", 3)):
            (tmp_path / half / name).mkdir(parents=True)
            for number in range(4):
                shades = (stripes * step + 9 * number).astype(np.uint8)
                Image.fromarray(shades).convert("RGB").save(tmp_path / half / name / f"{number}.jpg")
    asked: dict[str, object] = {"dataset": f"folder:{tmp_path}", "data_dir": str(home), "model": "simple_cnn"}
    config = resolved(asked, batch_size=8, epochs=4, augment="none", run_name="photos")
    dataset, (folder, held) = data.read(config), RunFolder.create(config, decided_of(config))
    held.release()
    train_here(config, dataset, Path(folder.address) / "checkpoints")
    uri = f"sqlite:///{tmp_path}/lost.db"
    scored = use.evaluate("photos", "last", None, uri, print)
    said = use.predict("photos", [tmp_path / "test"], "last", uri, print)[1]
    right = [dict(each.answers)[Path(each.sample["image"]).parent.name] for each in said]
    assert scored.metrics["loss"] == pytest.approx(-np.log(right).mean(), rel=1e-4)
