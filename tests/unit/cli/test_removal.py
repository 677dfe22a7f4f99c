"""What ``cifar-ray delete`` takes away, and what it refuses."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cifar_ray import storage
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.runs.folder import RunFolder
from cifar_ray.storage import Lock
from cifar_ray.tracking import parent, reading, registry, store
from cifar_ray.tracking.study import FOLDER_TAG, KEY_TAG, SWEEP_TAG
from tests.support import mlflow_store
from tests.support.typed import Said
from tests.unit.tracking.test_registry import log


@pytest.fixture
def client(home: Path) -> MlflowClient:
    (home / ".cifar_ray").mkdir()
    return mlflow_store.new_store(home / ".cifar_ray")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def train(client: MlflowClient, small: TrainConfig, name: str, of: str = "", above: str | None = None) -> Path:
    """The folder of a finished run with a checkpoint and a model in MLflow; ``of`` is the id of its sweep."""
    asked = replace(small, storage=above, run_name=name)
    made, held = RunFolder.create(asked, Decided.asked(asked))
    held.release()
    (Path(made.address) / "checkpoints").mkdir()
    with (Path(made.address) / "checkpoints" / "weights").open("wb") as weights:
        weights.truncate(12_000_000)
    tags = {KEY_TAG: made.key, FOLDER_TAG: made.address, "dataset": "digits", "model": "resnet"}
    tags |= {parent.PARENT_TAG: of} if of else {}
    run_id = client.create_run(store.experiment_id(client, "test"), tags=tags, run_name=name).info.run_id
    client.log_metric(run_id, "test/accuracy", 0.5)
    client.set_terminated(run_id)
    log(client, run_id, "final", "f")
    return Path(made.address)


def sweep(client: MlflowClient, small: TrainConfig, name: str, *cells: str) -> Path:
    folder = storage.at(None).below(name)
    folder.make()
    folder.write("sweep.yaml", "")
    tags = {parent.KIND_TAG: parent.KIND, SWEEP_TAG: name, FOLDER_TAG: folder.address}
    run_id = client.create_run(store.experiment_id(client, "test"), tags=tags, run_name=name).info.run_id
    client.set_terminated(run_id)
    for cell in cells:
        train(client, small, cell, run_id, folder.address)
    return Path(folder.address)


def there(client: MlflowClient) -> tuple[set[str], int]:
    """The names of all runs in MLflow, and how many models it has."""
    experiments = store.all_experiments(client)
    found = {run.info.run_name for run in store.search(client, experiments)}
    return found, len(client.search_logged_models(experiments))


def test_a_run_goes_with_its_folder_and_its_models_once_a_person_says_yes(
    client: MlflowClient, small: TrainConfig, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = train(client, small, "mine"), train(client, small, "other")
    run_id = reading.find_run(client, "mine").run_id
    assert said("delete mine", 2)[1] == "--yes must be given where there is no terminal to ask on"
    for answer in ("\n", "n\n", ""):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert " folder ~/.cifar_ray/runs/mine (12.0 MB)? [y/N] " in said("delete mine", 1)[0]
    assert (folder.exists(), there(client)) == (True, ({"mine", "other"}, 2))
    told = f"deleted run mine: MLflow run {run_id}, folder ~/.cifar_ray/runs/mine (12.0 MB)\n"
    assert said("delete mine --yes")[0] == told
    assert (folder.exists(), other.exists(), there(client)) == (False, True, ({"other"}, 1))
    for answer in ("y\n", "YES\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        folder = train(client, small, "mine")  # the name is free again
        said("delete mine")
        assert not folder.exists()


def test_a_sweep_goes_with_its_runs_or_loses_one(client: MlflowClient, small: TrainConfig, said: Said) -> None:
    folder = sweep(client, small, "grid", "a", "b")
    train(client, small, "other")
    said("delete b --yes")
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["a"]
    assert there(client) == ({"grid", "a", "other"}, 2)
    assert said("delete grid --yes")[0].startswith("deleted sweep grid: 2 MLflow runs, folder ~/.cifar_ray/runs/grid (")
    assert (folder.exists(), there(client)) == (False, ({"other"}, 1))


def test_what_is_being_trained_or_registered_stays(client: MlflowClient, small: TrainConfig, said: Said) -> None:
    mine, grid = train(client, small, "mine"), sweep(client, small, "grid", "a")
    for folder, names, told in (
        (mine, ["mine"], "run 'mine'"),
        (grid / "a", ["a", "grid"], "run 'a'"),
        (grid, ["grid"], "sweep 'grid'"),
    ):
        with Lock(storage.at(str(folder)), RuntimeError()):
            for name in names:
                refusal = said(f"delete {name} --yes", 2)[1]
                assert refusal == f"{told} is being trained by another process"
    for model in ("digits", "pets"):
        registry.register("a", model, None, client.tracking_uri)
    registered = "the model of run 'a' is registered as version 1 of 'digits', version 1 of 'pets'; delete that"
    for name in ("a", "grid"):
        assert said(f"delete {name} --yes", 2)[1].startswith(registered)
    assert there(client) == ({"mine", "grid", "a"}, 2)
    assert all(len(list(folder.rglob("weights"))) == 1 for folder in (mine, grid))


def test_a_run_without_its_folder_goes(client: MlflowClient, small: TrainConfig, said: Said) -> None:
    moved = train(client, small, "mine").rename(Path(storage.at(None).address) / "moved")
    run_id = reading.find_run(client, "mine").run_id
    client.update_run(run_id, "RUNNING")
    told = f"'mine' is RUNNING, and its folder {moved.with_name('mine')} is not on this machine"
    assert said("delete mine --yes", 2)[1].startswith(told)
    client.update_run(run_id, "KILLED")
    train(client, small, "mine")  # another run in the place of the old one's folder
    told = f"deleted run mine: MLflow run {run_id}, not ~/.cifar_ray/runs/mine, which is not here or another run's\n"
    assert said(f"delete {run_id} --yes")[0] == told
    assert ((moved.with_name("mine") / "run.json").exists(), there(client)) == (True, ({"mine"}, 1))
    client.delete_run(reading.find_run(client, "mine").run_id)  # MLflow has lost it: it goes by its folder
    assert said("delete mine --yes")[0] == "deleted run mine: folder ~/.cifar_ray/runs/mine (12.0 MB)\n"
    assert not moved.with_name("mine").exists()


def test_a_name_must_mean_one_thing(client: MlflowClient, small: TrainConfig, tmp_path: Path, said: Said) -> None:
    assert said("delete nobody --yes", 2)[1].startswith("there is no run or sweep 'nobody' in sqlite:///")
    folder = sweep(client, small, "twin", "a")
    train(client, small, "twin", above=str(tmp_path / "elsewhere"))
    known = reading.find_sweep(client, "twin")
    ids = f"{reading.find_run(client, 'twin').run_id} (run), {known.run_id} (sweep)"
    assert said("delete twin --yes", 2)[1].endswith(f"take one of their ids: {ids}")
    said(f"delete {known.run_id} --yes")
    assert (folder.exists(), there(client)) == (False, ({"twin"}, 1))
