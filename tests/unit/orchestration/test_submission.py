"""What is submitted as a job, and under which name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cifar_ray.cli import cluster, main

DIGITS = ["--dataset", "digits", "--model", "simple_cnn"]
GRID = ["sweep", "--grid", "batch_size=16,32", *DIGITS]


def test_a_run_is_called_as_its_job() -> None:
    unnamed = cluster.read(["train", *DIGITS], None)
    assert re.fullmatch(r"train-[0-9a-f]{8}", unnamed.name)
    assert unnamed.words == ["train", *DIGITS, "--run-name", unnamed.name]
    assert cluster.read(["train", *DIGITS], None) == unnamed
    assert cluster.read(["train", *DIGITS, "--seed", "4"], None).name != unnamed.name
    named = cluster.read(["train", *DIGITS], "mine")
    assert (named.name, named.words[-2:]) == ("mine", ["--run-name", "mine"])
    run_named = cluster.read(["train", *DIGITS, "--run-name", "run"], None)
    assert (run_named.name, run_named.words) == ("run", ["train", *DIGITS, "--run-name", "run"])
    both = cluster.read(["train", *DIGITS, "--run-name", "run"], "job")
    assert (both.name, both.words[-1]) == ("job", "run")


def test_a_sweep_is_called_by_its_name_and_a_continuation_has_a_time(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("grid: {batch_size: [16, 32]}\ntrain: {dataset: digits, model: simple_cnn}\n")
    sweep = cluster.read(["sweep", str(file), "--seeds", "2"], None)
    assert (sweep.name, sweep.file, sweep.words) == ("grid", str(file), ["sweep", str(file), "--seeds", "2"])
    for words in (["resume", "my run!"], ["sweep", "--resume", "grid"]):
        again = cluster.read(words, None)
        assert again.words == words
        assert re.fullmatch(r"resume-\d{8}-\d{6}", again.name)
        assert cluster.read(words, "known").name == "known"


def test_a_sweep_without_a_name_has_the_same_one_every_time() -> None:
    sweep = cluster.read(GRID, None)
    assert re.fullmatch(r"sweep-[0-9a-f]{8}", sweep.name)
    assert sweep.words == [*GRID, "--name", sweep.name]
    assert cluster.read(GRID, None) == sweep
    assert cluster.read(GRID, "mine").words[-2:] == ["--name", "mine"]


@pytest.mark.parametrize("words", [["train", *DIGITS], ["resume", "mine"], ["sweep", "--resume", "grid"], GRID])
def test_the_store_that_a_command_names_is_known(words: list[str]) -> None:
    assert cluster.read(words, None).tracking_uri is None
    assert cluster.read([*words, "--tracking-uri", "http://mlflow"], None).tracking_uri == "http://mlflow"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --epochs many", "--epochs must be a whole number, got 'many'"),
        ("train --epoch 3", "unknown flag --epoch; did you mean --epochs?"),
        ("train --config none.yaml", "none.yaml"),
        ("train --storage runs", "--storage must begin with / or ~ in a job"),
        ("train --data-dir ./data", "--data-dir must begin with / or ~ in a job"),
        ("resume run --epochs 3", "unknown flag --epochs"),
        ("resume run --topology 2by2", "--topology"),
        ("sweep --grid batch_size=x --name s", "--batch-size"),
        ("sweep --grid batch_size=16 --name s --storage runs", "--storage must begin with / or ~ in a job"),
        ("evaluate run", "cifar-ray submit takes train, resume or sweep after `--`, got 'evaluate'"),
        ("", "cifar-ray submit needs the command after `--`, such as `cifar-ray submit -- train`"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    words: str, sentence: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No server is asked: there is none at that address."""
    before = ["submit", "--address", "http://127.0.0.1:9", *(["--"] if words else [])]
    assert main.main([*before, *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert sentence in said


def test_what_only_the_job_can_check_is_left_to_it() -> None:
    """Whether the sweep has failed runs, or the run a price."""
    assert cluster.read(["sweep", "--resume", "s", "--retry-failed"], None).words[-1] == "--retry-failed"
    assert cluster.read(["sweep", "--grid", "batch_size=16", "--retry-failed"], "s").name == "s"
    assert cluster.read(["resume", "run", "--max-cost", "5"], None).name.startswith("resume-")


def test_without_what_rays_client_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "cifar_ray.orchestration.jobs.client", raising=False)
    monkeypatch.delattr("cifar_ray.orchestration.jobs.client", raising=False)
    assert main.main(["submit", "--", "train"]) == 2
    needs = "error: this command needs aiohttp; install it with `pip install 'cifar-ray[cluster]'`\n"
    assert capsys.readouterr().err == needs


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("127.0.0.1:8265", "ray://head:10001", "http://me:hunter2@head", "auto"):
        assert main.main(["submit", "--address", wrong, "--", "train"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: --address must be http://HOST:PORT of a Ray job server, got ")
        assert "hunter2" not in said
