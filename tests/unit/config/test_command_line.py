"""What the words of `train`, `resume` and `sweep` ask for, and how a job greets who has submitted it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from cifar_ray import __version__
from cifar_ray.cli.train import resume, sweep
from cifar_ray.config import command_line, flags
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from tests.support import typed


def test_a_run_is_a_file_with_flags_on_top(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("epochs: 3\nlr: 0.1\n")
    assert typed.run("--lr", "0.2", f"--config={file}") == TrainConfig(epochs=3, lr=0.2)
    assert typed.run("--augment", "none") == TrainConfig(augment="none")
    with pytest.raises(ConfigError, match=r"^--config: expected one argument"):
        typed.run("--config")


def test_a_run_goes_on_with_what_is_given_alone() -> None:
    words = ["mine", "--topology", "1x2", "--local-nodes", "2", "--verbose", "--hang-timeout-s", "9"]
    options = {"topology": "1x2", "local_nodes": "2", "verbose": True, "hang_timeout_s": "9"}
    assert flags.read(resume, words, "resume") == {"run": "mine", "options": options}
    for wrong, told in ((["mine", "--epochs", "3"], "unknown flag --epochs"), ([], "^run must be given")):
        with pytest.raises(ConfigError, match=told):
            flags.read(resume, wrong, "resume")


def test_a_sweep_is_a_file_with_flags_on_top(tmp_path: Path) -> None:
    file = tmp_path / "lrs.yaml"
    file.write_text("grid: {lr: [0.1, 0.2]}\n")
    config = SweepConfig(name="lrs", grid=({"lr": [0.1, 0.2]},), train={"epochs": 2}, seeds=3)
    words = "--epochs", "2", "--seeds", "3"
    assert typed.sweep(str(file), *words) == config
    assert typed.sweep("--name", "mine", "--grid", "lr=0.1,0.2", *words) == dataclasses.replace(config, name="mine")
    assert re.fullmatch(r"sweep-\d{8}-\d{6}", typed.sweep("--grid", "batch_size=16,32").name)
    file.write_text("strategy_options: {servers: 2}\nmodel_options.depth: 2\ngrid: {batch_size: [16, 32]}\n")
    with pytest.raises(ConfigError, match=f"^{file}: put strategy_options, model_options.depth under `train:`"):
        typed.sweep(str(file))


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("a.yaml --resume s", "--resume goes on"),
        ("--model-options.depth 3 --resume s", "--resume goes on"),
        ("--resume s --tracking-uri http://me@h", "--tracking-uri must not have a "),
        ("--zzz", "unknown flag --zzz"),
        ("--grid lr=0.1 --json", "--json is for --dry-run"),
        ("--samples", "--samples: expected one argument"),
    ],
)
def test_a_sweep_that_is_asked_for_wrongly(words: str, begins: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flags.call(sweep, words.split(), "sweep")
    assert caught.value.as_flag().startswith(begins)


def test_a_job_greets_who_has_submitted_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    monkeypatch.delenv("CIFAR_RAY_SUBMITTED_WITH", raising=False)
    command_line.greet()
    monkeypatch.setenv("CIFAR_RAY_SUBMITTED_WITH", __version__)
    command_line.greet()
    assert capsys.readouterr().out == f"cifar_ray {__version__} on node1\n"  # once
    monkeypatch.setenv("CIFAR_RAY_SUBMITTED_WITH", "0.0.1")
    with pytest.raises(ConfigError, match=r"0.0.1; install the same"):
        command_line.greet()


@pytest.mark.parametrize(
    ("text", "words", "begins"),
    [
        ("grid: {measure: times}", (), "{}: grid has 'measure', "),
        ("grid: {lr: [0.1]}\ntrain: {measure: times}", (), "{}: train has 'measure', "),
        ("grid: {lr: [fast]}", ("--epochs", "3"), "{}: lr must be "),
        ("grid: {lr: [0.1]}", ("--epochs", "x"), "--epochs must be "),
        ("grid: {lr: [0.1]}\ntrain: [1]", ("--epochs", "3"), "{}: train must be "),
        ("grid: {lr: [0.1]}", ("--grid", "max-concurrent=2"), "--grid has 'max_concurrent', "),
    ],
)
def test_a_mistake_is_told_where_it_was_made(text: str, words: tuple[str, ...], begins: str, tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        typed.sweep(str(file), *words)
    assert caught.value.as_flag().startswith(begins.format(file))
