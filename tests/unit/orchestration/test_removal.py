"""What ``cifar-ray delete`` takes away, and what it refuses."""

from __future__ import annotations

import io
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cifar_ray import storage
from cifar_ray.cli import main
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.runs.folder import RunFolder
from cifar_ray.storage import Lock
from cifar_ray.tracking import parent, reading, registry, store
from cifar_ray.tracking.study import FOLDER_TAG, KEY_TAG, SWEEP_TAG
from tests.support import mlflow_store
from tests.unit.tracking.test_registry import log


@pytest.fixture
def client(home: Path) -> MlflowClient:
    (home / ".cifar_ray").mkdir()
    return mlflow_store.new_store(home / ".cifar_ray")


def train(client: MlflowClient, small: TrainConfig, name: str, of: str = "", above: str | None = None) -> Path:
    """The folder of a finished run with a checkpoint and a model in MLflow; ``of`` is the id of its sweep."""
    made, held = RunFolder.create(
        replace(small, storage=above, run_name=name), Decided.asked(replace(small, storage=above, run_name=name))
    )
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
    """The folder of a sweep with these runs."""
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


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.main(["delete", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.removeprefix("error: ").rstrip()


def test_a_run_goes_with_its_folder_and_its_models(
    client: MlflowClient, small: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = train(client, small, "mine"), train(client, small, "other")
    run_id = reading.find_run(client, "mine").run_id
    assert main.main(["delete", "mine", "--yes"]) == 0
    told = f"deleted run mine: MLflow run {run_id}, folder ~/.cifar_ray/runs/mine (12.0 MB)\n"
    assert capsys.readouterr() == (told, "")
    assert (folder.exists(), other.exists(), there(client)) == (False, True, ({"other"}, 1))
    again = replace(small, run_name="mine")
    RunFolder.create(again, Decided.asked(again))[1].release()  # the name is free again


def test_a_sweep_goes_with_all_of_its_runs_or_loses_one_of_them(
    client: MlflowClient, small: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sweep(client, small, "grid", "a", "b", "c")
    train(client, small, "other")
    assert main.main(["delete", "b", "--yes"]) == 0
    assert (sorted(path.name for path in folder.iterdir() if path.is_dir()), there(client)) == (
        ["a", "c"],
        ({"grid", "a", "c", "other"}, 3),
    )
    capsys.readouterr()
    assert main.main(["delete", "grid", "--yes"]) == 0
    told = "deleted sweep grid: 3 MLflow runs, folder ~/.cifar_ray/runs/grid (24.0 MB)\n"
    assert capsys.readouterr() == (told, "")
    assert (folder.exists(), there(client)) == (False, ({"other"}, 1))


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("YES\n", 0), ("\n", 1), ("n\n", 1), ("", 1)])
def test_at_a_terminal_it_asks(
    answer: str,
    status: int,
    client: MlflowClient,
    small: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    folder = train(client, small, "mine")
    assert main.main(["delete", "mine"]) == status
    assert (folder.exists(), len(there(client)[0])) == (bool(status), status)
    assert " folder ~/.cifar_ray/runs/mine (12.0 MB)? [y/N] " in capsys.readouterr().out


def test_without_a_terminal_it_does_not_ask(
    client: MlflowClient, small: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(client, small, "mine")
    assert refusal(capsys, "mine") == "--yes must be given where there is no terminal to ask on"
    assert folder.exists()


def test_what_is_being_trained_stays(
    client: MlflowClient, small: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, grid = train(client, small, "mine"), sweep(client, small, "grid", "a")
    for folder, names, told in (
        (mine, ["mine"], "run 'mine'"),
        (grid / "a", ["a", "grid"], "run 'a'"),
        (grid, ["grid"], "sweep 'grid'"),
    ):
        with ExitStack() as stack:
            stack.enter_context(Lock(storage.at(str(folder)), RuntimeError()))
            for name in names:
                assert refusal(capsys, name, "--yes") == f"{told} is being trained by another process"
    assert there(client) == ({"mine", "grid", "a"}, 2)
    assert all(len(list(folder.rglob("weights"))) == 1 for folder in (mine, grid))


def test_what_is_registered_stays(client: MlflowClient, small: TrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep(client, small, "grid", "a", "b")
    registry.register("a", "digits", None, client.tracking_uri)
    registry.register("a", "pets", None, client.tracking_uri)
    for name in ("a", "grid"):
        assert refusal(capsys, name, "--yes") == (
            "the model of run 'a' is registered as version 1 of 'digits', version 1 of 'pets'; delete that in MLflow's "
            "model registry first"
        )
    assert (len(list(folder.rglob("weights"))), there(client)) == (2, ({"grid", "a", "b"}, 2))


def test_a_run_without_its_folder_goes_unless_it_may_be_trained_elsewhere(
    client: MlflowClient, small: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = train(client, small, "mine").rename(Path(storage.at(None).address) / "moved")
    run_id = reading.find_run(client, "mine").run_id
    client.update_run(run_id, "RUNNING")
    told = "'mine' is RUNNING, and its folder {} is not on this machine; delete it where that is"
    assert refusal(capsys, "mine", "--yes") == told.format(moved.with_name("mine"))
    client.update_run(run_id, "KILLED")
    train(client, small, "mine")  # another run in the place of the old one's folder
    assert main.main(["delete", run_id, "--yes"]) == 0
    assert capsys.readouterr().out == (
        f"deleted run mine: MLflow run {run_id}, not ~/.cifar_ray/runs/mine, which is not here or another run's\n"
    )
    assert ((moved.with_name("mine") / "run.json").exists(), there(client)) == (True, ({"mine"}, 1))


def test_a_run_that_mlflow_has_lost_goes_by_its_folder(
    client: MlflowClient, small: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(client, small, "mine")
    client.delete_run(reading.find_run(client, "mine").run_id)
    assert main.main(["delete", "mine", "--yes"]) == 0
    assert capsys.readouterr().out == "deleted run mine: folder ~/.cifar_ray/runs/mine (12.0 MB)\n"
    assert not folder.exists()


def test_names_that_mean_nothing_or_two_things_are_refused(
    client: MlflowClient, small: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, "nobody", "--yes").startswith("there is no run or sweep 'nobody' in sqlite:///")
    folder = sweep(client, small, "twin", "a")
    train(client, small, "twin", above=str(tmp_path / "elsewhere"))
    known = reading.find_sweep(client, "twin")
    assert known is not None
    run_id = reading.find_run(client, "twin").run_id
    assert refusal(capsys, "twin", "--yes") == (
        f"there are a run and a sweep named 'twin'; take one of their ids: {run_id} (run), {known.run_id} (sweep)"
    )
    assert main.main(["delete", known.run_id, "--yes"]) == 0
    assert (folder.exists(), there(client)) == (False, ({"twin"}, 1))
