"""How lines are shown on a screen."""

from __future__ import annotations

import io
import os
import time
from dataclasses import replace
from functools import partial

import pytest

from cifar_ray.cli import trained
from cifar_ray.config.errors import counted
from cifar_ray.display.run import Console
from cifar_ray.display.sweep import Board, CellView, result
from cifar_ray.display.terminal import Output, tilde
from cifar_ray.runs.use import Scored
from cifar_ray.tasks import Figure, TaskSpec
from cifar_ray.tracking import store

TEXT = "run mine: simple_cnn on cifar10, topology 2x2, 128 images per step (32 per worker), gather_scatter"


def shown(text: str, is_screen: bool) -> list[str]:
    console = Console()
    screen = io.StringIO()
    console.terminal = Output(
        file=screen, width=80, force_terminal=is_screen, highlight=False, soft_wrap=True, color_system=None
    )
    console.line(text)
    return screen.getvalue().splitlines()


def test_lines_break_between_words_on_a_screen_and_nowhere_else() -> None:
    assert [len(line) <= 80 for line in shown(TEXT, is_screen=True)] == [True, True]
    assert " ".join(shown(TEXT, is_screen=True)) == TEXT
    assert shown(TEXT, is_screen=False) == [TEXT]


def test_a_long_path_stays_whole() -> None:
    path = "/a" * 60
    assert shown(f"folder  {path}", is_screen=True) == ["folder", path]


def test_the_home_folder_is_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    paths = {"/home/me/runs/a": "~/runs/a", "/home/mes/a": "/home/mes/a", "s3://b/runs/a": "s3://b/runs/a"}
    assert {path: tilde(path) for path in paths} == paths


def test_without_a_home_folder_paths_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")  # as in a container, too
    assert tilde("/runs/a") == "/runs/a"
    assert store.shown("sqlite:////.cifar_ray/mlflow.db") == "sqlite:////.cifar_ray/mlflow.db"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # as in a container: no name, no home folder
    assert tilde("/runs/a") == "/runs/a"


def test_one_is_singular() -> None:
    assert [counted(number, "epoch") for number in (0, 1, 2000)] == ["0 epochs", "1 epoch", "2,000 epochs"]


def test_figures_are_those_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskSpec("mine:Depth", (Figure("rmse", "RMSE", "min"), Figure("near", "Near", percent=True)), "scans")
    metrics = {"test/rmse": 3.21, "test/near": 0.5, "test/loss": 0.25, "test/scans": 1200.0}
    metrics |= {"train/epoch_loss": 0.5, "epoch_s": 2.0, "epoch_scans_per_s": 1000.0}
    times = {"time/training_s": 4.0, "time/wall_s": 9.0, "scans_per_s": 1500.0}
    board = Board(["a"], time.time())
    cell = CellView(partial(board.show, 0), board.rows[0].shown)
    for view in (cell, Console()):
        view.training(task, 2, 10, 0)
        view.epoch(2, metrics)
    cell.progress(1, 12, 1500.0)
    scored = Scored("/there", 8, {"rmse": 3.21, "near": 0.5, "loss": 0.25}, 1200, 3.0, task)
    trained._print_scores(scored)
    shown = capsys.readouterr().out.splitlines()
    line = "epoch 2/2  train loss 0.5000  test loss 0.2500  test rmse 3.2100  2.0 s  1,000 scans/s"
    assert shown[:2] == [f"a: {line}", line]
    assert [line.split("  ")[-1].strip() for line in shown[2:6]] == ["3.2100", "50.00%", "0.2500", "1,200"]
    assert shown[6:] == ["checkpoint              /there (step 8)", "test rmse when written  3.0000"]
    assert board.rows[0].shown.note == "epoch 2/2, 1,500 scans/s"
    measured = {"val/rmse": 3.0, "val/near": 0.5, "val/loss": 0.75, "train/epoch_loss": 0.5, "epoch_s": 2.0}
    cell.epoch(1, {**measured, "epoch_scans_per_s": 1000.0})
    trained._print_scores(replace(scored, recorded_on="val"))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("a: epoch 1/2  train loss 0.5000  val loss 0.7500  val rmse 3.0000  ")
    assert shown[-1] == "val rmse when written  3.0000"
    assert result(task, 3.21, times) == "test rmse 3.2100, training 4.0 s, 1,500 scans/s"
