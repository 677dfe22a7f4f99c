"""What a screen shows: lines, the table at the end of a run, and the board of a sweep."""

from __future__ import annotations

import io
import os
import re
import time
from dataclasses import replace
from functools import partial

import pytest
import rich.console

from cifar_ray.cli import trained
from cifar_ray.config.errors import counted
from cifar_ray.display.run import Console
from cifar_ray.display.sweep import FINISHED, RUNNING, SKIPPED, STOPPED, Board, CellView, Line, Shown, result
from cifar_ray.display.terminal import Output, tilde
from cifar_ray.runs.use import Scored
from cifar_ray.tasks import USUAL, Figure, TaskSpec
from cifar_ray.tracking import store
from cifar_ray.training.rank_times import PHASES


def test_lines_break_between_words_on_a_screen_and_nowhere_else() -> None:
    def shown(text: str, is_screen: bool) -> list[str]:
        console, screen = Console(), io.StringIO()
        usual = {"width": 80, "highlight": False, "soft_wrap": True, "color_system": None}
        console.terminal = Output(file=screen, force_terminal=is_screen, **usual)
        console.line(text)
        return screen.getvalue().splitlines()

    text = "run mine: simple_cnn on cifar10, topology 2x2, 128 images per step (32 per worker), gather_scatter"
    assert [len(line) <= 80 for line in shown(text, is_screen=True)] == [True, True]
    assert (" ".join(shown(text, is_screen=True)), shown(text, is_screen=False)) == (text, [text])
    path = "/a" * 60
    assert shown(f"folder  {path}", is_screen=True) == ["folder", path]


def test_the_home_folder_is_a_tilde_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    paths = {"/home/me/runs/a": "~/runs/a", "/home/mes/a": "/home/mes/a", "s3://b/runs/a": "s3://b/runs/a"}
    assert {path: tilde(path) for path in paths} == paths
    monkeypatch.setenv("HOME", "/")  # as in a container, too
    assert tilde("/runs/a") == "/runs/a"
    assert store.shown("sqlite:////.cifar_ray/mlflow.db") == "sqlite:////.cifar_ray/mlflow.db"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # as in a container: no name, no home folder
    assert tilde("/runs/a") == "/runs/a"
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


def test_the_chosen_checkpoint_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("accuracy", "precision", "recall", "f1", "specificity", "loss", "images")
    times = {f"time/{phase}_s": 1.0 for phase in (*PHASES, "other", "epoch_mean", "wall")}
    usual = {f"test/{name}": 0.5 for name in names} | {"peak_memory_mib": 1.0}
    of_chosen = {f"chosen/test/{name}": 0.75 for name in names} | {"chosen/epoch": 3.0}

    def rows(figures: dict[str, float], attempt_s: float | None = None) -> dict[str, str]:
        Console().summary(usual | figures, times, [], attempt_s)
        shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
        return {name: value.strip() for name, value in shown.items() if re.match("wall|chosen|test accuracy", name)}

    last, wall = {"test accuracy": "50.00%"}, {"wall": "1.00 s"}
    assert rows({}) == last | wall
    assert rows({}, 12.5) == last | wall | {"wall, this attempt": "12.50 s"}
    chosen = wall | {"test accuracy": "75.00%", "test accuracy, last epoch": "50.00%"}
    assert rows(of_chosen) == chosen | {"chosen": "epoch 3, by the best test accuracy"}
    by = {"chosen": "epoch 3, by the best validation accuracy: 87.50%"}
    assert rows(of_chosen | {"best/accuracy": 0.875, "val/loss": 0.5}) == chosen | by


def table(board: Board) -> str:
    screen = rich.console.Console(width=200)
    with screen.capture() as captured:
        screen.print(board._table())
    return captured.get()


def test_a_run_shows_what_it_does_and_keeps_what_it_has_said() -> None:
    shown: list[Shown] = []
    view = CellView(shown.append, Shown(RUNNING))
    view.heading("of all runs")
    assert shown == []
    view.started("on this machine")
    view.line("a note")
    for seconds in (30.0, 45.0):
        view.no_room(seconds)
    assert (shown[-1].note, shown[-1].has_room) == ("waiting for room in the cluster, 45 s so far", False)
    view.training(USUAL, epochs=2, steps_per_epoch=10, step=5)
    assert (shown[-1].share, shown[-1].resumed, shown[-1].note, shown[-1].has_room) == (0.25, True, "training", True)
    view.progress(1, 12, 1500.0)
    assert (shown[-1].share, shown[-1].note) == (0.6, "epoch 2/2, 1,500 images/s")
    room = Line("waiting for room in the cluster", is_plain=True)
    assert shown[-1].lines == (Line("on this machine", of_all=True), Line("a note"), room)
    view.change(state=FINISHED, note="good")
    view.doing("recording the result")
    assert (shown[-1].state, shown[-1].note) == (FINISHED, "good")


def test_lines_are_shown_once_and_ends_with_their_count(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(["a", "b", "c"], time.time())
    of_all, own, plain = Line("on this machine", of_all=True), Line("mine"), Line("epoch 1", is_plain=True)
    for index in (0, 1):
        board.show(index, Shown(RUNNING, lines=(of_all,)))
        board.show(index, Shown(RUNNING, lines=(of_all, own)))
    board.is_live = True
    board.show(0, Shown(RUNNING, lines=(of_all, own, plain)))
    board.is_live = False
    board.show(1, Shown(STOPPED, "stopped by --max-time", lines=(of_all, own, plain)))
    board.show(2, Shown(SKIPPED, "no room"))
    assert capsys.readouterr().out.splitlines() == [
        "a: begins, run 1 of 3",
        "on this machine",
        "a: mine",
        "b: begins, run 2 of 3",
        "b: mine",
        "b: epoch 1",
        "b: stopped by --max-time (1 of 3 runs)",
        "c: skipped, no room",
    ]
    assert "1 of 2 runs" in table(board)


def test_while_a_run_waits_for_room_no_time_left_is_shown() -> None:
    board = Board(["one", "two", "three"], time.time() - 7200)
    board.start(1)
    board.show(0, Shown(RUNNING))
    board.rows[0].begun -= 25
    board.show(0, Shown(FINISHED, "done"))
    board.show(1, Shown(RUNNING))
    assert board.left_s() > 25
    assert " left, 2 h 00 min so far" in table(board)  # of all drivers
    board.show(1, Shown(RUNNING, "waiting for room in the cluster, 45 s so far", has_room=False))
    assert "waiting for room in the cluster, 45 s so far" in table(board)
    assert "left" not in table(board)
