"""Mistakes that are found only when files, stores and clusters are looked at."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from cifar_ray.config.errors import ConfigError
from cifar_ray.training.__main__ import main
from cifar_ray.training.errors import CheckpointError
from tests.support.mlflow_store import empty_database
from tests.support.person import Person

DIGITS = "train --dataset digits --model simple_cnn --epochs 1"


def refused(person: Person, words: str, **variables: str) -> str:
    """The sentence on a mistake. It leaves nothing behind: no process, no folder, no run."""
    done = person.runs(*words.split(), **variables)
    assert done.returncode == 2, done.stdout + done.stderr
    *notes, sentence = done.stderr.splitlines()
    assert all(note.startswith("note: ") for note in notes), done.stderr
    assert sentence.startswith("error: ")
    assert person.leftovers() == []
    runs = person.home / ".cifar_ray" / "runs"
    assert not runs.exists() or list(runs.iterdir()) == []
    experiments = [experiment.experiment_id for experiment in person.mlflow.search_experiments()]
    assert list(person.mlflow.search_runs(experiments)) == []
    return sentence.removeprefix("error: ")


@pytest.fixture(scope="module")
def user(resident: Person) -> Person:
    """Somebody with a store without runs; all mistakes are theirs, since they leave nothing behind."""
    (resident.home / ".cifar_ray").mkdir()
    (resident.home / ".cifar_ray" / "mlflow.db").write_bytes(empty_database())
    (resident.home / "file").write_text("")
    return resident


@pytest.mark.parametrize(
    ("words", "beginning", "told"),
    [
        ("--batch-size 2000", "--batch-size must leave at least one step per epoch", "has 1437 training images"),
        ("--freeze 0 features", "--freeze must match parameters of simple_cnn", "'features' matches none"),
        ("--freeze *", "--freeze must leave simple_cnn a parameter to learn", ""),
        ("--tracking-uri sqlite:///mlflow.db", "--tracking-uri must be ", "four slashes"),
        ("--tracking-uri http://127.0.0.1:9", "--tracking-uri must be a store that answers", "Connection refused"),
        ("--tracking-uri https://me:hunter2@tracking", "--tracking-uri must not have a user", ""),
        ("--storage file/below", "--storage must be a folder", ""),
        ("--storage s3://bucket/runs?region=x", "--storage must not have a user", "AWS_ACCESS_KEY_ID"),
        ("--storage ~nobody-at-all/runs", "--storage must begin with the home folder of somebody who has one", ""),
    ],
)
def test_a_training_is_refused(words: str, beginning: str, told: str, user: Person) -> None:
    sentence = refused(user, f"{DIGITS} {words}")
    assert sentence.startswith(beginning)
    assert told in sentence
    assert "hunter2" not in sentence


def test_no_network(user: Person) -> None:
    """Proxies that lead nowhere stand for a missing network, wherever this test runs."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    sentence = refused(user, f"train --data-dir {user.home}/data", **nowhere, no_proxy="")
    assert sentence.startswith(f"torchvision:CIFAR10 is not whole in {user.home}/data and could not be downloaded (")
    assert "--dataset digits, which needs no network" in sentence


def test_a_run_that_does_not_exist(user: Person) -> None:
    """A store that is not there is not made by looking into it."""
    Image.new("RGB", (8, 8)).save(user.home / "image.png")
    nowhere = f"sqlite:///{user.home}/nowhere/m.db"
    for words in ("resume nobody", "predict nobody image.png", f"evaluate nobody --tracking-uri {nowhere}"):
        assert refused(user, words).startswith("there is no run or sweep 'nobody' in sqlite:///")
    assert not (user.home / "nowhere").exists()


def test_a_port_that_is_taken(user: Person) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert refused(user, f"ui --port {server.getsockname()[1]}").startswith("--port must be a free port")


def test_the_doctor_names_what_is_wrong_and_changes_nothing(person: Person) -> None:
    well = person.succeeds("doctor")
    assert "nothing stands in the way of a run" in well.stdout
    assert not (person.home / ".cifar_ray").exists()
    ill = person.runs("doctor", "--tracking-uri", "http://127.0.0.1:9", "--address", "127.0.0.1:9")
    assert (ill.returncode, ill.stdout.count("!!  ")) == (1, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_mistakes_under_torchrun(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    with pytest.raises(ConfigError, match="must be a folder here, on this machine or mounted"):
        main(["--dataset", "digits", "--storage", "s3://runs"], 0.0)
    with pytest.raises(CheckpointError, match="checkpoints cannot be written to /proc/none/"):
        main(["--dataset", "digits", "--storage", "/proc/none"], 0.0)
    command = [sys.executable, "-m", "cifar_ray.training", "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "error: --device must be cpu or auto here: 1 GPU needed, 0 found\n")
    assert list(home.iterdir()) == []
