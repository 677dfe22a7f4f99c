"""A run: what it displays and records of its events, and its folder and its name."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

from cifar_ray import storage, tasks, tracking
from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.run import driver, events
from cifar_ray.orchestration.run.failures import DIED, Verdict
from cifar_ray.orchestration.run.limits import LimitReached, Spent
from cifar_ray.orchestration.run.listeners import Callback, checked
from cifar_ray.orchestration.run.session import RunSession
from cifar_ray.orchestration.sweep import driver as sweeps
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import RunFolder, check_free
from cifar_ray.tracking import uri
from cifar_ray.training import checkpoint, recipe
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import EpochRecord, Outcome, Row, SavedCheckpoint, Started, Traced
from tests.support import mlflow_store, step_times
from tests.support.helpers import forge, train_here

ROW = Row("iteration", 3, 0, {"train/loss": 1.5})
EPOCH = EpochRecord(Row("epoch", 2, 0, {"test/accuracy": 0.5}), [], {})
SAVED = SavedCheckpoint(Path("step-00000003"), 3, 1, "hash")


class Calls:
    def __init__(self, **values: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


PLACED = events.Placed(0, "node0-of-the-run", "10.0.0.1", "host", 1, 1, "cpu", "eth0")


def session(callbacks: Sequence[Callback] = (), placed: Sequence[events.Placed] | None = None, **values: Any) -> Any:
    usual = {"dataset": "digits", "topology": "1x2", "elastic": "1x1:1x2", "batch_size": 8, "max_failures": 1}
    config = recipe.resolve(TrainConfig(**usual))
    usual = {"segments": [], "task": tasks.USUAL, "trouble": "", "uri": uri.resolve_uri(None), "refused": []}
    record, view, folder = Calls(**{**usual, **values}), Calls(), Calls(name="mine")
    made: Any = RunSession(config, Decided.asked(config), None, folder, record, view, callbacks=callbacks)
    for each in placed or [replace(PLACED, rank=rank, node_id=f"node{rank}-of-the-run") for rank in range(2)]:
        made.handle(each)
    if placed is None:
        record.calls.clear()
    return made


def lines(made: Any) -> list[str]:
    return [given[0] for name, *given in made.view.calls if name == "line"]


class Clumsy(Callback):
    def iteration(self, row: Row) -> None:
        raise ValueError(f"no {row.kind} for me")

    def end(self, status: str) -> None:
        raise ValueError("too late")


def test_what_a_run_sets_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BEFORE", "1")
    theirs, address = logging.getLogger("mlflow"), mlflow.get_tracking_uri()
    theirs.setLevel(logging.WARNING)  # whatever a test before has left
    with tracking.unchanged():
        tracking.quieten(verbose=False)
        os.environ["SET_BY_RUN"] = "1"
        os.environ.pop("SET_BEFORE")
        mlflow.set_tracking_uri("sqlite:////ours.db")
        warnings.filterwarnings("error", message="of the run")
        assert theirs.level == logging.CRITICAL
    assert (mlflow.get_tracking_uri(), os.environ["SET_BEFORE"], theirs.level) == (address, "1", logging.WARNING)
    assert "SET_BY_RUN" not in os.environ
    warnings.warn("of the run", stacklevel=1)


def test_callbacks_hear_of_everything_and_end_nothing() -> None:
    hearing, heard = Callback(), list[Any]()
    hearing.iteration = hearing.epoch = hearing.checkpoint = hearing.end = heard.append
    made = session(callbacks=[Clumsy(), hearing], end=lambda status: True)
    for event in (ROW, EPOCH, ROW, SAVED):
        made.handle(event)
    made.end("FINISHED")
    assert heard == [ROW, EPOCH, ROW, SAVED, "FINISHED"]
    late = "Clumsy.end raised ValueError: too late"
    assert lines(made) == ["Clumsy.iteration raised ValueError: no iteration for me; training goes on", late]
    for given in (None, [None], Callback(), "text"):
        with pytest.raises(ConfigError, match=r"callbacks must be a list of cifar_ray\.Callback objects, got "):
            checked(given)


DIED_ONCE = "workers failed (rank 1: it died); restarting from the newest checkpoint, failure 1 of"
FAILURES = {"cifar_ray.worker_failures": "1"}


@pytest.mark.parametrize(
    ("event", "shown", "recorded"),
    [
        (ROW, ("loss", 1.5), ("row", ROW)),
        (events.Progress(0, 4, 100.0), ("progress", 0, 4, 100.0), None),
        (EPOCH, ("epoch", 2, EPOCH.row.metrics), ("row", EPOCH.row)),
        (SAVED, None, ("checkpoint", SAVED)),
        (events.Heartbeat(0, 7, {"cpu": 1.0}), None, ("system", 7, {"cpu": 1.0})),
        (events.Heartbeat(1, 7, {}), None, None),
        (events.WorkersFailed(Verdict("rank 1: it died", False, DIED)), DIED_ONCE, ("tags", FAILURES)),
        (events.WorkersFailed(Verdict("rank 1: it died", True, DIED)), None, None),
        (events.NodeLeaving("node1-of-the-run", 0), "node node1-of (10.0.0.1) leaves soon", ("count_preemption",)),
        (events.NodeLeaving("node2-of-others", 0), "node node2-of leaves soon", ("count_preemption",)),
        (events.RoomToGrow("2x2"), "there is room for topology 2x2; stopping 1x2 as soon as possible", None),
        (events.Stopped(5), "stopped after step 5 with a checkpoint", None),
    ],
)
def test_each_event_is_displayed_and_recorded(event: Any, shown: Any, recorded: Any) -> None:
    made = session()
    made.handle(event)
    if isinstance(shown, str):
        (line,) = lines(made)
        assert line.startswith(shown)
    else:
        assert made.view.calls == ([shown] if shown else [])
    assert made.record.calls == ([recorded] if recorded else [])


def test_traces_are_recorded_and_the_end_tells_where_they_are(tmp_path: Path) -> None:
    made = session(run_id="id", page=None)
    made.folder.folder, made.folder.address = storage.at(str(tmp_path)), str(tmp_path)
    result: Any = SimpleNamespace(name="mine", run_id="id", folder=str(tmp_path), weights_sha256="")
    assert not {"traces", "on nodes, all attempts", "cost"} & dict(made.locations(result)).keys()
    path = tmp_path / "traces" / "rank1.json.gz"
    made.handle(Traced(1, path, "rank,operator\n1,mm\n"))
    made.handle(Traced(0, path.with_name("rank0.json.gz"), "rank,operator\n0,mm\n", "it cannot be written: no room"))
    (name, on_disk), table = made.record.calls
    with on_disk() as file:
        assert (name, file) == ("trace", path)
    assert table == ("text", "profile/operators.csv", "rank,operator\n0,mm\n1,mm\n")
    assert lines(made) == ["no trace of rank 0: it cannot be written: no room; training goes on"]
    assert dict(made.locations(result))["traces"].startswith(f"{tmp_path}/traces, rank1.json.gz, also in MLflow")


@pytest.fixture
def priced() -> Any:
    made = session(name="mine", page=None, end=lambda status: True)
    made.config = replace(made.config, price=3.6, max_time="2h")
    return made


def test_what_a_run_has_used_is_shown_and_recorded_now_and_then(priced: Any) -> None:
    for seconds in (10.0, 11.0):
        priced.handle(Spent(seconds, 2 * seconds, 4.0, nodes=2))
    assert priced.view.calls == [("cost", pytest.approx(0.02)), ("cost", pytest.approx(0.022))]
    figures = {"time/placed_s": 10.0, "time/waiting_s": 4.0, "cost/usd": pytest.approx(0.02)}
    assert priced.record.calls == [("figures", figures)]
    priced.end("FINISHED")
    assert priced.record.calls[-1][1]["cost/usd"] == pytest.approx(0.022)
    result: Any = SimpleNamespace(name="mine", run_id="id", folder="/runs/mine", weights_sha256="")
    placed, waiting, (_, cost) = priced.locations(result)[:3]
    assert (placed[1], waiting[1], cost[:11]) == ("11 s", "4 s", "0.0220 USD ")


def test_a_driver_that_has_trained_nothing_leaves_what_earlier_ones_have_recorded(priced: Any) -> None:
    priced.end("KILLED")
    assert priced.record.calls == []


def test_a_run_that_a_limit_has_stopped_has_the_figures_of_its_last_whole_epoch(priced: Any) -> None:
    priced.handle(EPOCH)
    priced.handle(SAVED)
    priced.handle(LimitReached("max_time"))
    assert ("line", "--max-time 2h is reached; stopping as soon as possible") in priced.view.calls
    priced.halt("max_time")
    assert priced.record.calls[-1] == ("halted", "max_time", SAVED)
    start = "stopped by --max-time 2h after step 3, after epoch 2; `cifar-ray resume mine --max-time MORE`"
    assert priced.halted("max_time").startswith(start)


def test_a_move_forgets_where_workers_were_and_records_another_topology() -> None:
    made = session()
    same = made.decided
    made.handle(events.Moved(same))
    assert made.record.calls == []
    smaller = replace(same, topology="1x1")
    made.handle(events.Moved(smaller))
    assert made.record.calls == [("moved", smaller)]
    assert "going on with topology 1x1, 16 images per step as before (16 per worker)" in made.view.calls[-2][1]


def test_a_store_that_takes_nothing_is_mentioned_once() -> None:
    made = session()
    made.record.trouble = "connection refused"
    for _ in range(2):
        made.handle(ROW)
    assert lines(made) == ["MLflow does not answer (connection refused); training goes on, and keeps trying"]


def test_an_interrupted_run_counts_the_epochs_of_earlier_drivers_and_says_how_to_continue_it() -> None:
    for step, when in ((0, "within the first epoch"), (47, "after epoch 3")):
        made = session(name="mine")
        history = tuple(Row("epoch", epoch, 0, {}) for epoch in range(1, step // 12 + 1))
        made.handle(Started(Decided.asked(made.config), step, 12, "step" if step else None, history=history))
        assert made.interrupted == f"Stopped {when}. Continue with: cifar-ray resume mine"
    made = session(name="my run", uri="sqlite:////a b/m.db")
    made.handle(EPOCH)
    told = "Stopped after epoch 2. Continue with: cifar-ray resume 'my run' --tracking-uri 'sqlite:////a b/m.db'"
    assert made.interrupted == told


def test_the_gpus_of_a_run_are_recorded_with_their_software_and_told_where_others_use_them() -> None:
    t4 = replace(PLACED, device="Tesla T4", gpu={"gpu_driver": "580.95", "cuda": "13.2"})
    l4 = replace(PLACED, rank=1, device="NVIDIA L4", gpu={"gpu_driver": "590.1", "cuda": "13.2"})
    both = ("NVIDIA L4, Tesla T4", "580.95, 590.1")
    for placed, (gpus, drivers) in (([t4, replace(t4, rank=1)], ("Tesla T4", "580.95")), ([t4, l4], both)):
        made = session(placed=placed)
        tags = {"cifar_ray.gpus": gpus, "cifar_ray.gpu_driver": drivers, "cifar_ray.cuda": "13.2"}
        assert ("tags", tags) in made.record.calls
        assert made.view.calls == []
    busy = "9.5 of 24.0 GB of Tesla T4 (number 0) are in use by 2 other processes"
    assert lines(session(placed=[replace(t4, busy=busy), l4])) == [f"note: on node host, {busy}"]


@pytest.fixture
def config(small: TrainConfig, tmp_path: Path) -> TrainConfig:
    return replace(small, storage=str(tmp_path / "runs"), run_name="mine")


def test_a_folder_is_found_again_and_has_one_name_and_one_driver(config: TrainConfig) -> None:
    made, held = RunFolder.create(config, Decided.asked(config))
    with pytest.raises(ConfigError, match=r"run_name must be new, and 'mine' is in .*; `cifar-ray resume mine`"):
        RunFolder.create(config, Decided.asked(config))
    for _ in range(2):
        with held, pytest.raises(ConfigError, match="run 'mine' is being trained by another process"):
            made.lock()
        held = made.lock()
    held.release()
    assert RunFolder.at(made.address, made.key) == made
    asked, before = made.asked()
    assert (recipe.resolve(asked), before) == (replace(config, run_name=None), Decided.asked(config))
    assert sorted(path.name for path in Path(made.address).iterdir()) == [".driver.lock", "config.yaml", "run.json"]
    for text in ("", "{", "[]", "{}", json.dumps({"key": 3}), json.dumps({"key": "another"})):
        (Path(made.address) / "run.json").write_text(text)
        with pytest.raises(ConfigError, match=f"the folder of the run, {made.address}, is gone or damaged"):
            RunFolder.at(made.address, made.key)


def test_a_run_is_continued_with_its_own_config(config: TrainConfig, digits: Dataset) -> None:
    folder, _ = RunFolder.create(config, Decided.asked(config))
    train_here(config, digits, Path(folder.address) / "checkpoints")
    older, newest = checkpoint.every(Path(folder.address) / "checkpoints")
    written = (Path(folder.address) / "config.yaml").read_bytes()
    forge(newest, config=runfile.to_mapping(replace(checkpoint.load(newest).config, lr=0.15)))
    asked, before = folder.asked()
    continued = recipe.resolve(asked)
    assert continued == replace(config, run_name=None)
    with checkpoints.reading(folder.folder) as path:
        found = checkpoint.latest(path, continued, before)
        assert [saved.path for saved in checkpoint.existing(path)] == [older, newest]
    assert [row.step for row in found[1].history if row.kind == "epoch"] == [1]  # the newest one cannot be used
    assert (Path(folder.address) / "config.yaml").read_bytes() == written
    forge(older, config=runfile.to_mapping(replace(checkpoint.load(older).config, epochs=9)))
    with pytest.raises(CheckpointError, match=r"no usable checkpoint in .*: .* was made with lr 0.15, and this run"):
        checkpoint.latest(Path(folder.address) / "checkpoints", continued, before)


def test_a_taken_name_says_what_can_be_done_with_its_run_or_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "sweep.yaml").touch()
    mine = "`cifar-ray resume mine` continues it, and --weights mine starts from its weights$"
    grid = "it is a sweep, which `cifar-ray sweep --resume grid` continues"
    for name, advice in {"mine": mine, "grid": grid}.items():
        with pytest.raises(ConfigError, match=f"^run_name must be new, and '{name}' is in {tmp_path}; {advice}"):
            check_free(TrainConfig(storage=str(tmp_path), run_name=name))


def test_a_runs_last_line_says_what_bounds_it_where_something_is_named() -> None:
    outcome = Outcome(1, {}, {}, 0.0, "", "", {}, [], ())
    slow = replace(outcome, steps=step_times.run({}, {"backward": 26.0}))
    line = driver.bound_line(slow, "my run", "sqlite:////a/m.db")
    assert line.startswith("slow rank: rank 1 on node0 takes 118 ms ")
    assert line.endswith("; `cifar-ray explain 'my run' --tracking-uri sqlite:////a/m.db` says what to try")
    short = step_times.run({}, {"backward": 26.0}, stretches=3)
    for steps in (None, step_times.run({}, {}), short):
        assert driver.bound_line(replace(outcome, steps=steps), "my run", "sqlite:////a/m.db") == ""


def test_a_deleted_experiment_is_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = mlflow_store.new_store(tmp_path)
    client.delete_experiment(client.create_experiment("gone"))
    run = {"dataset": "digits", "tracking_uri": client.tracking_uri, "storage": str(tmp_path / "runs")}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "gone")
    sweep = SweepConfig("mine", {"seed": [0, 1]}, run)
    for start in (lambda: sweeps.sweep(sweep), lambda: driver.train(TrainConfig(**run))):
        with pytest.raises(ConfigError, match="the experiment of the run is deleted; restore 'gone' in MLflow"):
            start()
    assert "Ray" not in capsys.readouterr().out
    assert not list(tmp_path.glob("runs/*"))
