from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config import TrainConfig
from cifar_ray.orchestration import runs
from cifar_ray.strict import ConfigError


@pytest.fixture
def config(small: TrainConfig, tmp_path: Path) -> TrainConfig:
    return replace(small, storage=str(tmp_path / "runs"), run_name="mine")


def test_a_folder_is_found_again(config: TrainConfig) -> None:
    made = runs.create(config)
    assert runs.open_existing(made.address, made.key) == made
    assert made.config() == replace(config, run_name=None)
    assert sorted(path.name for path in Path(made.address).iterdir()) == ["config.yaml", "run.json"]


def test_a_name_is_taken_once(config: TrainConfig) -> None:
    runs.create(config)
    with pytest.raises(ConfigError, match=r"run_name must be new, and 'mine' is in .*; `cifar-ray resume mine`"):
        runs.create(config)


def test_a_folder_has_one_driver(config: TrainConfig) -> None:
    folder = runs.create(config)
    with folder.lock(), pytest.raises(ConfigError, match="run 'mine' is being trained by another process"):
        folder.lock()


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", json.dumps({"key": 3}), json.dumps({"key": "another"})])
def test_a_folder_that_is_damaged_or_anothers_is_refused(text: str, config: TrainConfig) -> None:
    folder = runs.create(config)
    (Path(folder.address) / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=f"the folder of the run, {folder.address}, is gone or damaged"):
        runs.open_existing(folder.address, folder.key)
