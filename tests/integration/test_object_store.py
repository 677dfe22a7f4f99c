"""Runs and sweeps whose folders are in an object store, from their commands, and disks that are full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cifar_ray import storage
from cifar_ray.runs.folder import CHECKPOINTS
from cifar_ray.storage import Folder
from tests.support import stores
from tests.support.helpers import resolved, train_on_ranks
from tests.support.person import Person
from tests.support.ports import free_port

DIGITS = ["--dataset", "digits", "--precision", "fp32", "--batch-size", "32"]
# Long enough for something to happen in its middle.
LONG = ["train", *DIGITS, "--model", "resnet", "--model-options.blocks", "1,1", "--epochs", "6", "--topology", "1x2"]
LONG += ["--val-share", "0.1", "--checkpoint-every", "7", "--run-name", "victim"]


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with stores.s3() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield variables


@pytest.fixture
def user(person: Person, server: dict[str, str]) -> Person:
    person.environment |= server
    return person


def worker_pid(person: Person) -> int:
    """The process of rank 0."""
    client, run_id = person.mlflow, person.run_named("victim").info.run_id
    end = time.monotonic() + 120
    while not any(file.path == "placement.json" for file in client.list_artifacts(run_id)):
        assert time.monotonic() < end, "no placement.json"
        time.sleep(0.2)
    return artifact(person, run_id, "placement.json")[0]["pid"]


def artifact(person: Person, run_id: str, name: str) -> Any:
    return json.loads(Path(person.mlflow.download_artifacts(run_id, name)).read_text())


def complete(folder: Folder) -> list[str]:
    """Names of a run's checkpoints in the store, all of them whole."""
    kept = folder.below(CHECKPOINTS)
    names = [name for name in kept.names() if "manifest.json" in kept.below(name).names()]
    for name in names:
        assert kept.below(name).names() == ["manifest.json", "state.pt", "weights.safetensors"]
    return names


@pytest.mark.fault
def test_a_run_goes_on_from_the_store_alone(user: Person, tmp_path: Path) -> None:
    """A worker is killed, then the driver, and then this machine loses every copy."""
    address = f"s3://{stores.BUCKET}/team/victim"
    folder = storage.at(address)
    with user.starts(*LONG, "--storage", f"s3://{stores.BUCKET}/team") as run:
        run.until("epoch 2/6", timeout=400)
        os.kill(worker_pid(user), signal.SIGKILL)
        run.until("restarting from the newest checkpoint, failure 1 of at most 3")
        run.until("continuing after step ", timeout=400)
        run.until("epoch 4/6", timeout=400)
        run.kill(signal.SIGKILL)
        run.end()
    end = time.monotonic() + 120  # its workers notice a moment later, and may be at a checkpoint
    while any("RayTrainWorker" in words for words in user.processes().values()):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert complete(folder)
    shutil.rmtree(user.home / ".cifar_ray" / "copies")
    assert {"checkpoints", "config.yaml", "run.json"} <= set(folder.names())

    done = user.runs("resume", "victim", timeout=600)
    assert done.returncode == 0, done.stderr
    assert "continuing after step " in done.stdout
    config = resolved(
        {"dataset": "digits", "precision": "fp32", "batch_size": 32, "model": "resnet", "epochs": 6},
        model_options={"blocks": (1, 1)},
        topology="1x2",
        checkpoint_every=7,
        val_share=0.1,
    )
    (undisturbed, _), _ = train_on_ranks(config, tmp_path / "undisturbed")
    assert undisturbed is not None
    tags = user.run_named("victim").data.tags
    assert tags["cifar_ray.weights_sha256"] == undisturbed.weights_sha256
    metrics = user.run_named("victim").data.metrics
    assert metrics["chosen/test/accuracy"] == undisturbed.metrics["chosen/test/accuracy"]
    final = f"{address}/checkpoints/{Path(undisturbed.checkpoint).name}"
    assert (tags["cifar_ray.folder"], tags["cifar_ray.checkpoint"]) == (address, final)
    assert tags["cifar_ray.best_checkpoint"].startswith(f"{address}/checkpoints/step-")
    listed = artifact(user, user.run_named("victim").info.run_id, "checkpoints.json")["checkpoints"]
    assert listed[-1]["path"] == final
    assert len(complete(folder)) <= 3
    assert complete(folder)[-1] == Path(final).name
    left = [path for path in (user.home / ".cifar_ray" / "copies").rglob("*") if path.is_file()]
    assert [path.name for path in left] == [".driver.lock"]

    scored = user.runs("evaluate", "victim", "--checkpoint", "best")
    assert scored.returncode == 0, scored.stderr
    assert f" {address}/checkpoints/step-" in scored.stdout
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    assert user.runs("predict", "victim", str(tmp_path / "image.png")).returncode == 0
    assert f", folder {address} (" in user.succeeds("delete", "victim", "--yes").stdout
    assert not folder.exists()


@pytest.mark.extended
@pytest.mark.fault
def test_a_sweep_goes_on_from_the_store_alone(user: Person) -> None:
    words = [*DIGITS, "--model", "simple_cnn", "--epochs", "1", "--storage", f"s3://{stores.BUCKET}/sweeps"]
    with user.starts("sweep", "--name", "grid", *words, "--grid", "seed=1,2") as driver:
        driver.until("bs32 1x1 seed1: finished", timeout=400)
        driver.kill(signal.SIGKILL)
        driver.end()
    assert {"sweep.yaml", "cells.json"} <= set(storage.at(f"s3://{stores.BUCKET}/sweeps/grid").names())
    shutil.rmtree(user.home / ".cifar_ray" / "copies")
    done = user.runs("sweep", "--resume", "grid", timeout=600)
    assert done.returncode == 0, done.stderr
    for name in ("bs32 1x1 seed1", "bs32 1x1 seed2"):
        assert user.run_named(name).info.status == "FINISHED"
        assert len(complete(storage.at(user.run_named(name).data.tags["cifar_ray.folder"]))) == 1
    again = user.runs("sweep", "--name", "grid", *words, "--grid", "seed=1")
    assert again.returncode == 2
    assert again.stderr.startswith(f"error: --name must be new, and 'grid' is in s3://{stores.BUCKET}/sweeps; ")
    user.succeeds("delete", "grid", "--yes")
    assert not storage.at(f"s3://{stores.BUCKET}/sweeps/grid").exists()


def refused(person: Person, storage: str, command: Sequence[str] = ("train",), **variables: str) -> str:
    """The one sentence on a place that cannot be used; nothing is recorded."""
    done = person.runs(*command, *DIGITS, "--model", "simple_cnn", "--storage", storage, **variables)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert [experiment.name for experiment in person.mlflow.search_experiments()] == ["Default"]
    assert person.leftovers() == []
    return done.stderr


def test_a_bucket_that_is_not_there(user: Person) -> None:
    for command in (["train"], ["sweep", "--name", "seeds", "--grid", "seed=1,2"]):
        sentence = refused(user, "s3://nobody-has-it/runs", command)
        assert sentence.startswith("error: --storage must be a folder or a bucket that can be written; ")
        assert "NO_SUCH_BUCKET" in sentence
    ill = user.runs("doctor", "--storage", "s3:/wrong")
    assert (ill.returncode, ill.stdout.count("!!  ")) == (0, 0)  # it is a folder's name
    well = user.runs("doctor", "--storage", f"s3://{stores.BUCKET}/team")
    assert f"s3://{stores.BUCKET}/team answers" in well.stdout


def test_a_store_that_does_not_answer(user: Person) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    sentence = refused(user, f"s3://{stores.BUCKET}/runs", AWS_ENDPOINT_URL=dead)
    assert sentence.startswith(
        f"error: --storage must be a folder or a bucket that can be written; s3://{stores.BUCKET}/runs: "
    )
    assert "NETWORK_CONNECTION" in sentence


def test_keys_that_the_store_does_not_know(person: Person) -> None:
    with stores.s3(checks_keys=True) as variables:
        sentence = refused(person, f"s3://{stores.BUCKET}/runs", **variables)
    assert sentence.startswith(
        f"error: --storage must be a folder or a bucket that can be written; s3://{stores.BUCKET}/runs: "
    )
    assert variables["AWS_SECRET_ACCESS_KEY"] not in sentence


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    stores.mountpoint(tmp_path / "disk", "4m")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


@pytest.mark.extended
@pytest.mark.fault
def test_a_disk_that_fills_up_fails_the_run_truthfully(person: Person, disk: Path) -> None:
    with person.starts(*LONG, "--epochs", "200", "--storage", str(disk / "runs")) as run:
        run.until("epoch 2/200", timeout=400)
        with pytest.raises(OSError, match="No space left"):
            (disk / "ballast").write_bytes(bytes(4 << 20))
        assert run.end(timeout=400) == 1, run.output
        assert "Traceback" not in run.output
        assert "restarting" not in run.output  # it would meet the same
    ended = person.run_named("victim")
    assert ended.info.status == "FAILED"
    assert ended.data.tags["cifar_ray.failure"].endswith("cannot be written: No space left on device")
    (disk / "ballast").unlink()
    scored = person.runs("evaluate", "victim")
    assert scored.returncode == 0, scored.stderr
