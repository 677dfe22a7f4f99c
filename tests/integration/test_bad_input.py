"""Mistakes that are found only when files, stores and clusters are looked at."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.person import Person
from tests.support.ports import free_port

DIGITS = ["train", "--dataset", "digits", "--model", "simple_cnn", "--epochs", "1"]


def refused(person: Person, *words: str, **variables: str) -> str:
    """What is said on a mistake. Nothing is left behind by it: no process, no folder, no run."""
    done = person.runs(*words, **variables)
    assert done.returncode == 2, done.stdout + done.stderr
    *notes, sentence = done.stderr.splitlines()
    assert all(note.startswith("note: ") for note in notes), done.stderr
    assert sentence.startswith("error: ")
    assert person.leftovers() == []
    runs = person.home / ".cifar_ray" / "runs"
    assert not runs.exists() or list(runs.iterdir()) == []
    if Path(person.uri.removeprefix("sqlite:///")).exists():
        client = person.mlflow
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        assert list(client.search_runs(experiments)) == []
    return sentence.removeprefix("error: ")


def test_a_batch_larger_than_the_data_set(person: Person) -> None:
    sentence = refused(person, *DIGITS, "--batch-size", "2000")
    assert sentence.startswith("--batch-size must leave at least one step per epoch: 2000 x 1 workers")
    assert sentence.endswith("and digits has 1437 training images")


def test_patterns_that_match_nothing_or_everything(person: Person) -> None:
    parts = "whose names begin with 0, 3, 7 and 9"
    nothing = f"--freeze must match parameters of simple_cnn, {parts}; 'features' matches none"
    assert refused(person, *DIGITS, "--freeze", "0", "features") == nothing
    everything = "--freeze must leave simple_cnn a parameter to learn, and * matches all"
    assert refused(person, *DIGITS, "--freeze", "*") == everything


def test_no_network(person: Person) -> None:
    """Proxies that lead nowhere stand for a missing network, wherever this test runs."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    sentence = refused(person, "train", "--data-dir", str(person.home / "data"), **nowhere, no_proxy="")
    assert sentence.startswith(f"torchvision:CIFAR10 is not whole in {person.home}/data and could not be downloaded (")
    assert "--dataset digits, which needs no network" in sentence


def test_a_relative_tracking_path(person: Person) -> None:
    uri = "sqlite:///mlflow.db"
    assert refused(person, *DIGITS, "--tracking-uri", uri) == (
        f"--tracking-uri must be http(s)://HOST:PORT or sqlite:////absolute/path.db (four slashes), got {uri!r}"
    )


def test_a_tracking_server_that_is_not_there(person: Person) -> None:
    port = free_port()
    sentence = refused(person, *DIGITS, "--tracking-uri", f"http://127.0.0.1:{port}")
    assert re.fullmatch(
        rf"--tracking-uri must be a store that answers; http://127.0.0.1:{port} does not \(.*Connection refused\)",
        sentence,
    )


@pytest.mark.parametrize("words", [("resume",), ("evaluate",), ("predict",)])
def test_a_run_that_does_not_exist(words: tuple[str], person: Person, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    images = [str(tmp_path / "image.png")] if words == ("predict",) else []
    sentence = refused(person, *words, "nobody", *images)
    assert sentence == f"there is no run or sweep 'nobody' in {person.uri}; give its name or MLflow id"


def test_a_store_that_is_not_there_is_not_made_by_looking_into_it(person: Person) -> None:
    uri = f"sqlite:///{person.home}/nowhere/m.db"
    for words in (("resume", "x"), ("evaluate", "x")):
        assert refused(person, *words, "--tracking-uri", uri).startswith(f"there is no run or sweep 'x' in {uri}; ")
    assert not (person.home / "nowhere").exists()


def test_storage_that_cannot_be_written(person: Person) -> None:
    (person.home / "file").write_text("")
    for storage in (f"{person.home}/file/below", "/proc/none"):
        assert refused(person, *DIGITS, "--storage", storage).startswith("--storage must be a folder")
    assert refused(person, *DIGITS, "--storage", "s3://bucket/runs?region=x").startswith(
        "--storage must not have a user, password or token in it, nor a ? or #; keys belong in AWS_ACCESS_KEY_ID "
    )
    assert refused(person, *DIGITS, "--storage", "~nobody-at-all/runs") == (
        "--storage must begin with the home folder of somebody who has one, got '~nobody-at-all/runs'"
    )


def test_a_port_that_is_taken(person: Person) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refused(person, "ui", "--port", str(port)).startswith(
            f"--port must be a free port of this machine, got {port}"
        )


def test_the_doctor_names_what_is_wrong_and_changes_nothing(person: Person) -> None:
    well = person.runs("doctor")
    assert well.returncode == 0, well.stdout
    assert "nothing stands in the way of a run" in well.stdout
    assert not (person.home / ".cifar_ray").exists()
    ill = person.runs("doctor", "--tracking-uri", "http://127.0.0.1:9", "--address", "127.0.0.1:9")
    assert ill.returncode == 1
    assert ill.stdout.count("!!  ") == 2
    assert "Connection refused" in ill.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--topology 1x2", "--topology is for `cifar-ray train`; under torchrun it follows from torchrun, or is not"),
        ("--tracking-uri http://x", "--tracking-uri is for `cifar-ray train`; "),
        ("--device cuda", "--device must be cpu or auto here: 1 GPU needed, 0 found"),
        ("--dataset digits --storage /proc/none", "checkpoints cannot be written to /proc/none/"),
        ("--dataset digits --storage s3://runs", "--storage must be a folder here, on this machine or mounted"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_mistakes_under_torchrun(words: str, sentence: str, person: Person) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cifar_ray.training", *words.split()],
        capture_output=True,
        text=True,
        timeout=120,
        env=person.environment,
        cwd=person.home,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1


def test_a_password_is_not_repeated(person: Person) -> None:
    sentence = refused(person, *DIGITS, "--tracking-uri", "https://me:hunter2@tracking")
    assert sentence.startswith("--tracking-uri must not have a user, password or token in it")
    assert "hunter2" not in sentence
