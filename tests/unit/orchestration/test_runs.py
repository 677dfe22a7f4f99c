from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.orchestration.run import driver
from cifar_ray.orchestration.sweep import driver as sweeps
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import RunFolder, check_free
from cifar_ray.training import checkpoint, recipe
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import Outcome
from tests.support import mlflow_store, step_times
from tests.support.helpers import forge, train_here


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


def test_a_run_is_continued_with_its_own_config_whatever_a_checkpoint_says(
    config: TrainConfig, digits: Dataset
) -> None:
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
    for name, advice in (
        ("mine", "`cifar-ray resume mine` continues it, and --weights mine starts from its weights$"),
        ("grid", "it is a sweep, which `cifar-ray sweep --resume grid` continues"),
    ):
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
    for start in (
        lambda: sweeps.sweep(SweepConfig("mine", {"seed": [0, 1]}, run)),
        lambda: driver.train(TrainConfig(**run)),
    ):
        with pytest.raises(ConfigError, match="the experiment of the run is deleted; restore 'gone' in MLflow"):
            start()
    assert "Ray" not in capsys.readouterr().out
    assert not list(tmp_path.glob("runs/*"))
