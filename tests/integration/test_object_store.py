"""Runs and sweeps whose folders are in an object store, from their commands, and disks that are full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def complete(folder: Folder) -> list[str]:
    """Names of a run's checkpoints in the store, all of them whole."""
    kept = folder.below(CHECKPOINTS)
    names = [name for name in kept.names() if "manifest.json" in kept.below(name).names()]
    for name in names:
        assert kept.below(name).names() == ["manifest.json", "state.pt", "weights.safetensors"]
    return names


@pytest.mark.fault
@pytest.mark.extended
def test_a_run_goes_on_from_the_store_alone(user: Person, tmp_path: Path) -> None:
    """A worker is killed, then the driver, and then this machine loses every copy."""
    address = f"s3://{stores.BUCKET}/team/victim"
    folder, copies = storage.at(address), user.home / ".cifar_ray" / "copies"
    with user.starts(*LONG, "--storage", f"s3://{stores.BUCKET}/team") as run:
        run.until("epoch 2/6")
        os.kill(user.placement("victim")[0]["pid"], signal.SIGKILL)
        run.until("restarting from the newest checkpoint, failure 1 of at most 3")
        run.until("continuing after step ")
        run.until("epoch 4/6")
        run.kill(signal.SIGKILL)
        run.end()
    end = time.monotonic() + 120  # its workers notice a moment later, and may be at a checkpoint
    while any("RayTrainWorker" in words for words in user.processes().values()):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert complete(folder)
    shutil.rmtree(copies)
    assert "continuing after step " in user.succeeds("resume", "victim").stdout

    plain: dict[str, object] = {"dataset": "digits", "precision": "fp32", "batch_size": 32, "model": "resnet"}
    plain |= {"model_options": {"blocks": (1, 1)}, "topology": "1x2", "checkpoint_every": 7, "val_share": 0.1}
    (undisturbed, _), _ = train_on_ranks(resolved(plain, epochs=6), tmp_path / "undisturbed")
    assert undisturbed is not None
    ended = user.run_named("victim").data
    final = f"{address}/checkpoints/{Path(undisturbed.checkpoint).name}"
    assert (ended.tags["cifar_ray.weights_sha256"], ended.metrics["chosen/test/accuracy"]) == (
        undisturbed.weights_sha256,
        undisturbed.metrics["chosen/test/accuracy"],
    )
    assert (ended.tags["cifar_ray.folder"], ended.tags["cifar_ray.checkpoint"]) == (address, final)
    listed = json.loads(user.artifact("victim", "checkpoints.json").read_text())["checkpoints"]
    assert listed[-1]["path"] == final
    assert len(complete(folder)) <= 3
    assert complete(folder)[-1] == Path(final).name
    assert [path.name for path in copies.rglob("*") if path.is_file()] == [".driver.lock"]
    assert f" {address}/checkpoints/step-" in user.succeeds("evaluate", "victim", "--checkpoint", "best").stdout
    user.succeeds("delete", "victim", "--yes")
    assert not folder.exists()


@pytest.mark.slow
def test_a_store_that_cannot_be_used_is_refused_and_nothing_is_recorded(user: Person) -> None:
    words = [*DIGITS, "--model", "simple_cnn", "--storage"]
    runs, sweep = f"s3://{stores.BUCKET}/runs", ["sweep", "--name", "seeds", "--grid", "seed=1,2"]
    gone = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    with stores.s3(checks_keys=True) as unknown:
        for command, address, variables, problem in (
            (["train"], "s3://nobody-has-it/runs", {}, "NO_SUCH_BUCKET"),
            (sweep, "s3://nobody-has-it/runs", {}, "NO_SUCH_BUCKET"),
            (["train"], runs, gone, "NETWORK_CONNECTION"),
            (["train"], runs, unknown, ""),
        ):
            sentence = user.refused(*command, *words, address, **variables)
            assert sentence.startswith("--storage ")
            assert problem in sentence
            assert stores.KEYS["AWS_SECRET_ACCESS_KEY"] not in sentence
    assert [experiment.name for experiment in user.mlflow.search_experiments()] == ["Default"]
    assert user.leftovers() == []


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
    person.succeeds("evaluate", "victim")
