from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.display.run import Console
from cifar_ray.orchestration.run import driver
from cifar_ray.orchestration.sweep import driver as sweeps
from cifar_ray.runs import checkpoints
from cifar_ray.runs.folder import RunFolder, check_free
from cifar_ray.training import checkpoint, recipe
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.observer import Outcome
from tests.support import mlflow_store, step_times
from tests.support.helpers import forge, train_here
from tests.support.images import folder_of_digits


@pytest.fixture
def config(small: TrainConfig, tmp_path: Path) -> TrainConfig:
    return replace(small, storage=str(tmp_path / "runs"), run_name="mine")


def test_a_folder_is_found_again(config: TrainConfig) -> None:
    made, held = RunFolder.create(config, Decided.asked(config))
    held.release()
    assert RunFolder.at(made.address, made.key) == made
    asked, before = made.asked()
    assert (recipe.resolve(asked), before) == (replace(config, run_name=None), Decided.asked(config))
    assert sorted(path.name for path in Path(made.address).iterdir()) == [".driver.lock", "config.yaml", "run.json"]


def test_a_name_is_taken_once_and_a_folder_has_one_driver(config: TrainConfig) -> None:
    folder, held = RunFolder.create(config, Decided.asked(config))
    with pytest.raises(ConfigError, match=r"run_name must be new, and 'mine' is in .*; `cifar-ray resume mine`"):
        RunFolder.create(config, Decided.asked(config))
    with pytest.raises(ConfigError, match="run 'mine' is being trained by another process"):
        folder.lock()
    held.release()
    with folder.lock(), pytest.raises(ConfigError, match="run 'mine' is being trained by another process"):
        folder.lock()


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", json.dumps({"key": 3}), json.dumps({"key": "another"})])
def test_a_folder_that_is_damaged_or_anothers_is_refused(text: str, config: TrainConfig) -> None:
    folder, _ = RunFolder.create(config, Decided.asked(config))
    (Path(folder.address) / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=f"the folder of the run, {folder.address}, is gone or damaged"):
        RunFolder.at(folder.address, folder.key)


def test_a_run_says_what_is_in_a_folder_of_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: TrainConfig
) -> None:
    folder_of_digits(tmp_path / "images", 100)
    (tmp_path / "images" / "train" / "3" / "1.heic").touch()
    own = recipe.resolve(
        replace(
            config,
            dataset=f"folder:{tmp_path}/images",
            data_dir=str(tmp_path),
            global_batch_size=10,
            steps_per_epoch=None,
        )
    )
    with Console() as console:
        driver._read(own, Decided.asked(own), console)
    shown = capsys.readouterr().out.splitlines()
    assert shown.count("images: 10 classes, 100 training and 100 test images; 1 file left out (.heic 1)") == 1


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
    assert found is not None
    assert [row.step for row in found[1].history if row.kind == "epoch"] == [1]  # the newest one cannot be used
    assert (Path(folder.address) / "config.yaml").read_bytes() == written
    forge(older, config=runfile.to_mapping(replace(checkpoint.load(older).config, epochs=9)))
    with pytest.raises(CheckpointError, match=r"no usable checkpoint in .*: .* was made with lr 0.15, and this run"):
        checkpoint.latest(Path(folder.address) / "checkpoints", continued, before)


def test_a_taken_name_says_what_can_be_done_with_its_run(tmp_path: Path) -> None:
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    advice = "`cifar-ray resume mine` continues it, and --weights mine starts from its weights"
    with pytest.raises(ConfigError, match=f"run_name must be new, and 'mine' is in {tmp_path}; {advice}$"):
        check_free(TrainConfig(storage=str(tmp_path), run_name="mine"))


def test_the_name_of_a_sweep_is_taken_too(tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "sweep.yaml").touch()
    config = TrainConfig(storage=str(tmp_path), run_name="grid")
    with pytest.raises(ConfigError, match="it is a sweep, which `cifar-ray sweep --resume grid` continues"):
        check_free(config)


def test_a_runs_last_line_says_what_bounds_it_where_something_is_named() -> None:
    outcome = Outcome(1, {}, {}, 0.0, "", "", {}, [], ())
    slow = replace(outcome, steps=step_times.run({}, {"backward": 26.0}))
    line = driver.bound_line(slow, "my run", "sqlite:////a/m.db")
    assert line.startswith(
        "slow rank: rank 1 on node0 takes 118 ms for forward, backward and the optimizer, the others "
    )
    assert line.endswith("; `cifar-ray explain 'my run' --tracking-uri sqlite:////a/m.db` says what to try")
    short = step_times.run({}, {"backward": 26.0}, stretches=3)
    for steps in (None, step_times.run({}, {}), short):
        assert driver.bound_line(replace(outcome, steps=steps), "my run", "sqlite:////a/m.db") == ""


@pytest.mark.parametrize("grid", [None, {"seed": [0, 1]}])
def test_a_deleted_experiment_is_refused_before_ray_starts(
    grid: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = mlflow_store.new_store(tmp_path)
    client.delete_experiment(client.create_experiment("gone"))
    where = {"tracking_uri": client.tracking_uri, "storage": str(tmp_path / "runs")}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "gone")
    run = {"dataset": "digits", **where}
    start = (
        (lambda: sweeps.sweep(SweepConfig("mine", grid, run))) if grid else (lambda: driver.train(TrainConfig(**run)))
    )
    with pytest.raises(ConfigError, match="the experiment of the run is deleted; restore 'gone' in MLflow"):
        start()
    assert "Ray" not in capsys.readouterr().out
    assert not list(tmp_path.glob("runs/*"))
