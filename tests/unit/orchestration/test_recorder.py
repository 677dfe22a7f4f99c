"""How the runs of a sweep end, in the display and in the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cifar_ray.orchestration.sweep.limits import Budget
from cifar_ray.orchestration.sweep.recorder import SweepRecorder
from cifar_ray.orchestration.sweep.trial import BY_SWEEP, TrialEvent, TrialFinished, TrialStarted, TrialTooLarge
from mlflow import MlflowClient
from rich.console import Console

from cifar_ray import storage
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.sweep import cells as cells_of
from cifar_ray.data import Dataset
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.run.events import Mailbox, Progress
from cifar_ray.orchestration.run.limits import Spent
from cifar_ray.orchestration.sweep import planner
from cifar_ray.runs.folder import RunFolder
from cifar_ray.tracking import study
from cifar_ray.tracking.parent import SweepRecord
from cifar_ray.tracking.study import Run
from cifar_ray.training.observer import EpochRecord, Outcome, Row, SavedCheckpoint
from tests.support import mlflow_store


class Filled(Mailbox):
    """A mailbox without an actor that holds events."""

    def __init__(self, *events: Any) -> None:
        super().__init__(None)
        self.events = list(events)

    def take(self, timeout_s: float) -> list[Any]:
        taken, self.events = self.events, []
        return taken


def recorder(scheduler: str = "none", **options: Any) -> SweepRecorder:
    values = {"name": "s", "train": {"dataset": "digits", "epochs": 3}, "grid": {"seed": [1, 2]}}
    config = sweeps.from_mapping({**values, "scheduler": scheduler, **options})
    trials = planner.plan(cells_of(config, planner.draw(config)))
    for trial in trials:
        trial.state = boards.RUNNING
    figures: list[dict[str, float]] = []
    record: Any = SimpleNamespace(figures=figures.append, told=figures)
    board = Board([trial.cell.name for trial in trials], time.time())
    budget = Budget(config, trials)
    return SweepRecorder(config, trials, board, None, record, {}, time.time(), 1, budget)  # type: ignore[arg-type]


def recorder_of(client: MlflowClient, folder: Path, digits: Dataset) -> SweepRecorder:
    """As :func:`recorder`, with a store that has the sweep."""
    made = recorder()
    made.client = client
    made.record = SweepRecord.create(client, made.config, str(folder), "")
    for trial in made.trials:
        trial.state, trial.folder = boards.WAITING, RunFolder(storage.at(str(folder / trial.slug)), trial.slug)
        if trial.config:
            trial.decided = replace(trial.decided, data=digits.spec)
    made.datasets = {f"digits {digits.spec.digest}": digits}
    return made


def children(client: MlflowClient, sweep: str) -> list[Run]:
    """The runs of a sweep, oldest first."""
    return reading.trials(client, study.Sweep("s", [], "", "", run_id=sweep))


def outcome(seconds: float) -> Outcome:
    times = {"time/training_s": seconds, "images_per_s": 1000.0}
    return Outcome(3, {"test/accuracy": 0.5}, times, 0.0, "hash", "checkpoint", {}, [], ())


def test_runs_end_as_they_report(capsys: pytest.CaptureFixture[str]) -> None:
    made, sentence = recorder(), "rank 0: it died"
    events = [(0, Progress(0, 1, 1.0)), (0, TrialFinished(outcome(2.0))), (1, TrialFinished(None, sentence))]
    made.catch_up(Filled(*(TrialEvent(*each) for each in events)), [(0, False), (1, False)])
    assert [(trial.state, trial.reason) for trial in made.trials] == [(boards.FINISHED, ""), (boards.FAILED, sentence)]
    shown = capsys.readouterr().out
    assert "finished, test accuracy 50.00%, training 2.0 s, 1,000 images/s" in shown
    assert "failed, rank 0: it died" in shown
    assert made.figures()["sweep/training_s"] == 2.0


DIED = (boards.FAILED, "the process that drove it has died")
STOPPED = (boards.STOPPED, "stopped early by ASHA: it was behind the best runs so far")


@pytest.mark.parametrize(
    ("scheduler", "failed", "end"),
    [
        ("none", True, DIED),
        ("none", False, DIED),
        ("asha", True, DIED),
        ("asha", False, STOPPED),
    ],
)
def test_a_run_that_ends_without_a_report_was_stopped_or_has_died(
    scheduler: str, failed: bool, end: tuple[str, str]
) -> None:
    made = recorder(scheduler)
    made.catch_up(Filled(), [(1, failed)])
    assert [(trial.state, trial.reason) for trial in made.trials] == [(boards.RUNNING, ""), end]


def until(made: SweepRecorder, true: Callable[[], bool]) -> None:
    """Let the recorder look for news as the driver does."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        made.catch_up(Filled(), [])
        time.sleep(0.01)


def test_a_store_that_is_away_as_a_run_starts_has_it_later_and_the_driver_does_not_wait(
    tmp_path: Path, digits: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    client = mlflow_store.new_store(tmp_path)
    made = recorder_of(client, tmp_path, digits)
    trial = made.trials[0]
    mlflow_store.refuse(client, "INSERT ON runs")
    figures = {"epoch_s": 1.5, "train/epoch_loss": 0.5, "test/loss": 0.5, "test/accuracy": 0.5}
    figures |= {"epoch_images_per_s": 1000.0}
    epoch = EpochRecord(Row("epoch", 1, 0, figures), [], {})
    events = [TrialStarted(time.time()), SavedCheckpoint(tmp_path, 1, 1, "", 0.5, False), epoch]
    made.catch_up(Filled(*(TrialEvent(0, event) for event in events)), [])  # which returns
    until(made, lambda: trial.session is not None and trial.session.record.trouble == "no room")
    mlflow_store.alter(client, "DROP TRIGGER full")
    made.catch_up(Filled(TrialEvent(0, TrialFinished(None, "it died"))), [])
    made.end_runs()
    made.end("FINISHED")
    (run,) = children(client, made.record.run_id)
    assert (run.status, run.metrics["epoch_s"]) == ("FAILED", 1.5)
    assert run.reason == "it died"


def test_a_run_that_shared_a_gpu_is_recorded_as_made_for_what_it_learns(tmp_path: Path, digits: Dataset) -> None:
    client = mlflow_store.new_store(tmp_path)
    made = recorder_of(client, tmp_path, digits)
    for trial, share in zip(made.trials, (1.0, 0.25)):
        assert trial.config is not None
        trial.config = replace(trial.config, gpus_per_worker=share, device="cuda")
        trial.decided = replace(trial.decided, device="cuda")
        made._record_of(trial, time.time()).end("FINISHED")
    runs = children(client, made.record.run_id)
    assert [run.measure for run in runs] == ["all", "accuracy"]
    assert [run.params["gpus_per_worker"] for run in runs] == ["1.0", "0.25"]


def test_runs_for_which_the_cluster_has_become_too_small_stay_waiting_and_it_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = recorder()
    for trial in made.trials:
        trial.state = boards.WAITING
    for index in (0, 1):
        reason = f"topology 2x{index} needs 2 nodes"
        made.catch_up(Filled(TrialEvent(index, TrialTooLarge(reason))), [(index, False)])
    assert [trial.state for trial in made.trials] == [boards.WAITING, boards.WAITING]
    assert made.too_large == {0: "topology 2x0 needs 2 nodes", 1: "topology 2x1 needs 2 nodes"}
    told = "the cluster has lost nodes (topology 2x0 needs 2 nodes); runs that still fit go on\n"
    assert capsys.readouterr().out == told


def test_epochs_count_as_training_of_a_run_that_does_not_finish() -> None:
    made = recorder()
    for number in (1, 2):
        made.handle(TrialEvent(1, EpochRecord(Row("epoch", number, 0, {"epoch_s": 1.5}), [], {})))
    assert made.figures()["sweep/training_s"] == 3.0


def test_what_a_sweep_has_used_is_recorded_once_a_minute_while_no_run_ends() -> None:
    made: Any = recorder()
    made.catch_up(Filled(), [])
    assert made.record.told == []
    made._figures_at -= 60
    made.budget.placed_s = 70.0
    for _ in range(2):
        made.catch_up(Filled(), [])
    assert [figures["sweep/placed_s"] for figures in made.record.told] == [70.0]


def test_a_run_stopped_early_says_at_which_epoch_and_what_comes_later_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = recorder("asha")
    epoch = EpochRecord(Row("epoch", 2, 0, {"epoch_s": 1.5}), [], {})
    made.catch_up(Filled(TrialEvent(1, epoch)), [(1, False)])
    made.handle(TrialEvent(1, TrialFinished(outcome(2.0))))
    trial = made.trials[1]
    assert (trial.state, trial.reason) == (
        boards.STOPPED,
        "stopped early by ASHA: it was behind the best runs at epoch 2",
    )
    assert f"{trial.cell.name}: stopped early by ASHA: it was" in capsys.readouterr().out


def test_a_run_that_a_limit_has_stopped_says_whose_limit_it_was() -> None:
    made = recorder(max_time="1m")
    made.budget.placed_s = 60.0
    for index, by in enumerate(("max_time", BY_SWEEP)):
        made.catch_up(Filled(TrialEvent(index, TrialFinished(None, stopped_by=by))), [(index, False)])
    assert [(trial.state, trial.reason) for trial in made.trials] == [
        (boards.STOPPED, "stopped by --max-time"),
        (boards.STOPPED, "stopped by the sweep's --max-time"),
    ]
    assert not any(trial.completed for trial in made.trials)


def test_a_run_that_its_patience_has_ended_has_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    made = recorder()
    ended = replace(outcome(2.0), stopped_by="patience")
    made.catch_up(Filled(TrialEvent(0, TrialFinished(ended))), [(0, False)])
    assert (made.trials[0].state, made.trials[0].completed) == (boards.FINISHED, True)
    assert "stopped by --patience after epoch 3" in capsys.readouterr().out


def test_a_run_is_not_started_before_it_is_known_what_the_last_one_took(capsys: pytest.CaptureFixture[str]) -> None:
    made = recorder(max_time="50s")
    first, second = made.trials
    first.state = second.state = boards.WAITING
    assert made.admit(0) is True
    assert made.admit(1) is None  # Ray Tune knows that the first has ended, and its result is on its way
    first.state = boards.RUNNING
    events = (Spent(30.0, 30.0, nodes=1), TrialFinished(outcome(2.0)))
    made.catch_up(Filled(*(TrialEvent(0, event) for event in events)), [])
    made.budget.placed_s = 30.0
    assert made.admit(1) is False
    made.catch_up(Filled(), [])
    reason = "expected to take 30 s, and 20 s of the sweep's --max-time 50s are left"
    assert (second.state, second.reason) == (boards.SKIPPED, reason)
    assert made.left == 1
    assert f"seed2: skipped, {reason}" in capsys.readouterr().out
    assert [cell["state"] for cell in (trial.described(made.config) for trial in made.trials)] == ["RUN", "SKIPPED"]


def test_what_a_sweep_has_cost_is_the_sum_over_its_runs() -> None:
    made = recorder(train={"dataset": "digits", "price": "3.6"})
    made.trials[0].spent = Spent(10.0, 20.0)  # of an earlier driver
    made.catch_up(Filled(TrialEvent(1, Spent(5.0, 5.0, nodes=1))), [])
    assert made.figures()["cost/usd"] == pytest.approx(0.025)
    made.catch_up(Filled(), [])
    assert made.board.usd == pytest.approx(0.025)
    assert "cost/usd" not in recorder().figures()


def test_while_a_run_waits_for_room_the_board_shows_for_how_long_and_no_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    board = Board(["one", "two", "three"], time.time())
    board.start(1)
    board.begin(0)
    board.rows[0].begun -= 25
    board.end(0, boards.FINISHED, "done")
    board.begin(1)
    view = board.rows[1]
    assert board.left_s() > 25
    for seconds in (30.0, 45.0):
        view.no_room(seconds)
    assert capsys.readouterr().out.count("two: waiting for room in the cluster") == 1
    shown = Console(width=200)
    with shown.capture() as captured:
        shown.print(board._table())
    assert "waiting for room in the cluster, 45 s so far" in captured.get()
    assert "left" not in captured.get()
    view.doing("starting the workers")
    assert board.left_s() > 25


def test_the_time_left_is_what_the_runs_left_are_expected_to_take(capsys: pytest.CaptureFixture[str]) -> None:
    made = recorder(grid={"epochs": [1, 5]}, train={"dataset": "digits"})
    made.board.start(1)
    made.trials[1].state = boards.WAITING
    made.board.begin(0)
    spent = Spent(20.0, 20.0)
    made.catch_up(Filled(TrialEvent(0, spent), TrialEvent(0, TrialFinished(outcome(2.0)))), [(0, False)])
    assert made.board.left_s() == pytest.approx(100.0), "five times as long as one epoch took on its nodes"
    assert "(1 of 2 runs; about 1 min 40 s left)" in capsys.readouterr().out
    made.trials[1].spent = Spent(30.0, 30.0)
    made.expect()
    assert made.board.left_s() == pytest.approx(70.0), "a run that goes on has done a part of it"


def test_the_boards_clock_counts_through_all_drivers_and_does_not_start_again() -> None:
    board = Board(["one"], time.time() - 7200)
    board.start(1)
    shown = Console(width=100)
    with shown.capture() as captured:
        shown.print(board._table())
    assert "2 h 00 min so far" in captured.get()
