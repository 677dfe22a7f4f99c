"""A sweep before it runs, and after an earlier driver has left it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import ray
import torch

from cifar_ray import data, models, storage
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.sweep import Cell, SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.display import sweep as board
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.sweep import plan as plans
from cifar_ray.orchestration.sweep import preparation, tuning
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.plan import PlannedCell, planned
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.session import SweepSession
from cifar_ray.runs import weights
from cifar_ray.tracking.study import FOLDER_TAG, STOPPED_BY_TAG, STOPPED_TAG, Run, Sweep
from cifar_ray.training import recipe
from tests.support.cells import configs_of
from tests.support.helpers import decided_of
from tests.support.images import folder_of_digits


def made(grid: object = None, **values: object) -> SweepConfig:
    grid = grid or {"batch_size": [16]}
    return sweeps.from_mapping({"name": "s", "train": {"dataset": "digits"}, "grid": grid, **values})


def refusal(sweep: SweepConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        plans.refuse(sweep, planned(sweep))
    return caught.value.as_flag()


def know(cells: list[plans.PlannedCell]) -> None:
    """As if their data had been read."""
    for cell in cells:
        cell.decided = replace(cell.decided, data=data.SPECS["digits"])


def begin(cell: plans.PlannedCell, folder: Path, key: str = "k") -> None:
    """Make its folder, as an earlier driver has."""
    (folder / cell.slug).mkdir()
    (folder / cell.slug / "run.json").write_text(json.dumps({"key": key, "name": cell.slug}))


def test_a_random_search_draws_as_many_from_every_grid_each_once() -> None:
    sweep = made({"batch_size": [16, 64], "topology": ["1x1", "1x2"]}, search="random", samples=3)
    drawn = plans._drawn(sweep)
    assert len({repr(values) for values in drawn}) == len(drawn) == 3
    assert plans._drawn(sweep) == drawn
    few = made({"batch_size": [16, 64]}, search="random", samples=9)
    assert sorted(values["batch_size"] for values in plans._drawn(few)) == [16, 64]
    grids = [{"model": model, "lr": "loguniform:0.01:0.1"} for model in ("simple_cnn", "resnet")]
    drawn = plans._drawn(made(grids, search="random", samples=10))
    assert [values["model"] for values in drawn] == ["simple_cnn"] * 10 + ["resnet"] * 10
    assert len({values["lr"] for values in drawn}) == 20
    assert all(0.01 <= values["lr"] <= 0.1 for values in drawn)
    drawn = plans._drawn(made({"epochs": "int:2:4", "batch_size": [16, 64]}, search="random", samples=6))
    assert {values["epochs"] for values in drawn} == {2, 3, 4}  # with both ends


def test_all_that_cannot_run_is_named_or_skipped() -> None:
    sweep = made({"batch_size": [16, 2000, 3000]})
    cells = planned(sweep)
    told = refusal(sweep)
    assert told.startswith("--grid must have cells that can run here, or go with --skip-infeasible; bs2000 1x1 seed0: ")
    assert "bs3000 1x1 seed0: batch_size must leave at least one step per epoch" in told
    lenient = replace(sweep, skip_infeasible=True)
    plans.refuse(lenient, cells)
    assert [cell.state for cell in cells] == [board.WAITING, board.SKIPPED, board.SKIPPED]
    described = cells[1].described(lenient)
    assert (described["state"], described["params"]["batch_size"]) == ("SKIPPED", "2000")
    assert "must have a cell that can run here" in refusal(replace(lenient, grid=({"batch_size": [2000, 3000]},)))


def test_names_of_folders_are_short_and_different() -> None:
    long = {"weight_decay": [1.23e-5, 1.24e-5], "label_smoothing": [0.1, 0.2], "warmup_epochs": [1.5, 2.5]}
    long |= {"lr": [1e-30, 1e30], "momentum": [0.5, 0.25], "optimizer": ["sgd", "adamw"], "bucket_cap_mb": [1.25, 2.5]}
    small = {"dataset": "digits", "model": "simple_cnn"}
    alike = made({"weights": ["a/b.pt", "a-b.pt"], "lr_scale": [["[0-3]=0.1"], ["*[0-3]*=0.1"]]})
    slugs = [cell.slug for cell in (*planned(made(long, train=small)), *planned(alike))]
    assert len(set(slugs)) == len(slugs)
    assert 100 < max(map(len, slugs)) <= 120


def test_a_cell_whose_weights_do_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = data.SPECS["digits"]
    torch.save(models.build(TrainConfig(model="simple_cnn"), spec).state_dict(), "small.pt")
    grid = {"model": ["simple_cnn", "resnet"], "weights": ["small.pt", "nobody"]}
    search = plans.absolute(made(grid, search="optuna", samples=2))
    assert search.grid[0]["weights"] == [f"{tmp_path}/small.pt", "nobody"]
    sweep = plans.absolute(made({**grid, "weights": ["small.pt"]}, skip_infeasible=True))
    cells, home = planned(sweep), storage.at(str(tmp_path))
    ready = Preparation(sweep.base, Board(["one", "two"], 0.0), f"sqlite:///{tmp_path}/none.db", home)
    know(cells)
    ready.read_weights(cells)
    assert [cell.config and cell.config.weights for cell in cells] == [f"{tmp_path}/small.pt", None]
    assert "weights must fit at least half of the parameters of resnet" in cells[1].row.shown.note
    plans.refuse(sweep, cells)
    assert cells[1].state == board.SKIPPED
    with pytest.raises(ConfigError, match="or go with --skip-infeasible; resnet"):
        plans.refuse(replace(sweep, skip_infeasible=False), cells)
    torch.save({}, "small.pt")
    know(later := planned(sweep))
    ready.read_weights(later)
    assert later[0].config == cells[0].config


def test_an_interrupted_sweep_is_read_as_it_was_planned(tmp_path: Path) -> None:
    grid = {"model_options": {"blocks": [[1, 1], [2, 2]]}, "batch_size": [16, 2000]}
    sweep = made(grid, skip_infeasible=True, seeds=2)
    cells = planned(sweep)
    plans.refuse(sweep, cells)
    (tmp_path / "sweep.yaml").write_text(sweeps.to_yaml(sweep))
    plans.write_cells(storage.at(str(tmp_path)), [cell.described(sweep) for cell in cells])
    again, read = plans.read(Sweep("s", [], "", "", tags={FOLDER_TAG: str(tmp_path)}))
    assert again == sweep
    for cell, before in zip(read, cells, strict=True):
        assert (cell.cell.name, cell.cell.values, cell.index) == (before.cell.name, before.cell.values, before.index)
        assert (cell.config, cell.decided, cell.state) == (before.config, before.decided, before.state)
        assert cell.row.shown.note == before.row.shown.note


@pytest.mark.parametrize(
    ("status", "tags", "state"),
    [
        ("FINISHED", {}, board.FINISHED),
        ("FAILED", {}, board.FAILED),
        ("KILLED", {}, board.WAITING),
        ("KILLED", {STOPPED_TAG: "asha"}, board.STOPPED),
        ("STOPPED", {STOPPED_BY_TAG: "max_time"}, board.STOPPED),
        ("STOPPED", {STOPPED_BY_TAG: "sweep_max_cost"}, board.WAITING),
        ("", {}, board.WAITING),
    ],
)
def test_what_an_earlier_driver_has_made(status: str, tags: dict[str, str], state: str, tmp_path: Path) -> None:
    (cell,) = planned(made())
    known = {"k": Run(cell.cell.name, "id", status, tags=tags)} if status else {}
    home = storage.at(str(tmp_path))
    if known and not tags:  # it is not trained anew beside its record
        with pytest.raises(ConfigError, match=f"^resume needs the folder of the run {cell.cell.name}, {tmp_path}/"):
            cell.find_again(home, known)
    begin(cell, tmp_path)
    cell.find_again(home, known)
    assert (cell.state, cell.folder is not None) == (state, True)


def test_a_sweep_that_is_resumed_shows_what_has_ended_and_counts_it(tmp_path: Path) -> None:
    sweep = made({"batch_size": [16, 32, 64, 128, 2000]}, skip_infeasible=True)
    cells = planned(sweep)
    plans.refuse(sweep, cells)
    times = {"time/training_s": 2.0, "time/wall_s": 9.0, "images_per_s": 1000.0}
    known = {
        "k0": Run("r0", "id", "FINISHED", metrics={**times, "test/accuracy": 0.5}),
        "k1": Run("r1", "id", "FAILED", "rank 0: it died"),
        "k2": Run("r2", "id", "KILLED", "stopped early by ASHA", tags={STOPPED_TAG: "asha"}),
    }
    client, folder = SimpleNamespace(tracking_uri="sqlite:///x"), storage.at(str(tmp_path))
    for number, cell in enumerate(cells[:4]):
        begin(cell, tmp_path, f"k{number}")
        cell.find_again(folder, known)
    resumed = SweepSession(sweep, folder, client, cells, [], Budget(sweep, cells), 0.0)
    resumed._announce()
    assert [(row.shown.state, row.shown.note, row.took_s) for row in resumed._board.rows[:3]] == [
        (board.FINISHED, "test accuracy 50.00%, training 2.0 s, 1,000 images/s", 9.0),
        (board.FAILED, "rank 0: it died", 0.0),
        (board.STOPPED, "stopped early by ASHA", 0.0),
    ]
    assert resumed._stopped.startswith("Stopped after 3 of 4 runs. ")


def test_a_sweep_says_once_what_is_in_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of_digits(tmp_path / "images", 100)
    (tmp_path / "images" / "train" / "3" / "1.heic").touch()
    shared = {"dataset": f"folder:{tmp_path}/images", "data_dir": str(tmp_path / "decoded")}
    sweep = made({"batch_size": [10, 20]}, train=shared)
    Preparation(sweep.base, Board(["one", "two"], 0.0)).load_data(planned(sweep))
    shown = capsys.readouterr().out.splitlines()
    assert shown.count("images: 10 classes, 100 training and 100 test images; 1 file left out (.heic 1)") == 1


def test_a_measurement_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, failed = ConfigError("compile", "must be left out for resnet"), OSError("no disk")
    (cell,) = planned(made({"epochs": [1000], "model": ["simple_cnn"], "device": ["cpu"]}))
    monkeypatch.setattr(ray, "remote", lambda **_: lambda _: SimpleNamespace(remote=lambda *_: None))
    for cause, told in ((refused, "must be left out for"), (failed, "^the speeds could not be measured: no disk$")):
        error = ray.exceptions.RayTaskError("_measure", str(cause), cause, "p", 1, "ip").as_instanceof_cause()
        monkeypatch.setattr(ray, "get", mock.Mock(side_effect=error))
        with pytest.raises(ConfigError if cause is refused else RunFailedError, match=told):
            Preparation(TrainConfig(), Board([], 0.0)).decide_arithmetic([cell])


def test_a_folder_that_was_half_made_is_trained_and_one_that_has_more_is_kept(tmp_path: Path) -> None:
    (cell,) = planned(made())
    own, home = tmp_path / cell.slug, storage.at(str(tmp_path))
    own.mkdir()
    cell.find_again(home, {})
    assert (cell.state, cell.folder) == (board.WAITING, None)
    (own / "checkpoints" / "step-00000010").mkdir(parents=True)
    said = f"the folder of the run, {own}, is gone or damaged"
    for make in (lambda file: None, lambda file: file.write_text("{"), lambda file: file.unlink() or file.mkdir()):
        make(own / "run.json")
        with pytest.raises(ConfigError, match=said):
            cell.find_again(home, {})
    assert (own / "checkpoints" / "step-00000010").is_dir()


INK = {"dataset": ["examples.own_task:load"], "task": ["examples.own_task:Ink"]}


def test_a_search_goes_by_the_primary_figure_of_the_validation_and_its_direction() -> None:
    for axes, train, figure, mode in (
        ({"batch_size": [16]}, {"dataset": "digits"}, "val/accuracy", "max"),
        (INK, {}, "val/rmse", "min"),
    ):
        sweep = made({"epochs": [3, 5], **axes}, train=train, scheduler="asha", asha_grace=2, asha_reduction=3)
        racing = [cell.config for cell in planned(sweep) if cell.config]
        goal = goal_of(sweep, racing)
        scheduler = tuning.scheduler_of(sweep, goal, racing)
        assert (scheduler.metric, scheduler._mode, scheduler._max_t) == (figure, mode, 5)
        assert [milestone for milestone, _ in scheduler._brackets[0]._rungs] == [2]
        assert tuning.scheduler_of(sweep, goal, [replace(racing[0], epochs=1)])._max_t == 1
    accuracy, loss, speed = ("val/accuracy", 0.1), ("val/loss", 0.1), ("images_per_s", None)
    for objective, expected in ((None, accuracy), ("val/loss:min", loss), ("images_per_s:max", speed)):
        for search in ("random", "optuna") if importlib.util.find_spec("optuna") else ("random",):
            sweep = made({"lr": [0.1, 0.2]}, search=search, samples=1, objective=objective)
            configs = configs_of(sweep)
            assert (goal_of(sweep, configs).metric, configs[0].val_share) == expected


def test_what_cannot_be_compared_is_refused() -> None:
    sweep = made({"epochs": [3, 5]}, scheduler="asha", asha_grace=6)
    assert refusal(sweep) == "--asha-grace must be at most the 5 epochs of a run, got 6"
    grids = [{"dataset": ["digits"]}, INK]
    plans.refuse(made(grids, train={}), planned(made(grids, train={})))
    for flag, values in (("--scheduler", {"scheduler": "asha"}), ("--objective", {"objective": "test/loss:min"})):
        told = f"{flag} must be left out where runs learn different tasks, here classification, ink"
        assert refusal(made(grids, train={}, **values)) == told


@pytest.mark.parametrize(
    ("objective", "scheduler", "told"),
    [
        ("val/f1:max", "asha", None),
        ("epoch_s:min", "asha", None),
        ("time/step_forward_s:min", "none", None),
        ("best/accuracy:max", "none", None),
        ("best/xyz:max", "none", "must be a figure that runs record, such as val/accuracy, got 'best/xyz'"),
        ("time/nonsense:min", "none", "must be a figure that runs record, such as test/accuracy"),
        ("val/top5_accuracy:max", "none", "must be a figure that runs record, such as val/accuracy"),
        ("test/f1:max", "none", "must not be a figure of the test, by which nothing is chosen, got test/f1"),
        ("images_per_s:max", "asha", "must be a figure that runs record after every epoch, for --scheduler asha"),
    ],
)
def test_an_objective_that_no_run_records_is_refused(objective: str, scheduler: str, told: str | None) -> None:
    sweep = made({"epochs": [3]}, objective=objective, scheduler=scheduler)
    if told is None:
        plans.refuse(sweep, planned(sweep))
    else:
        assert refusal(sweep).startswith(f"--objective {told}")
    if "top5" in objective:  # which runs of many classes have
        plans.refuse(many := replace(sweep, train={"dataset": "cifar100"}), planned(many))


def test_validation_images_that_the_weights_have_seen_are_named() -> None:
    tenth, fifth = {"val_share": 0.1}, {"val_share": 0.2}
    for theirs, ours, overlap in (
        ({}, tenth, True),
        (tenth, fifth, True),
        (tenth, tenth, False),
        ({}, {}, False),
        ({"dataset": "mnist"}, tenth, False),
    ):
        usual = {"dataset": "digits", "normalise": "half"}
        source, config = (recipe.resolve(TrainConfig(**{**usual, **values})) for values in (theirs, ours))
        said = weights._differing(config, SimpleNamespace(config=source, spec=data.SPECS[source.dataset]))
        assert ("may have been trained on this run's validation images" in said) == overlap


def test_a_run_of_texts_goes_on_with_the_tokenizer_of_its_weights(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "fine,good\ndull,bad\n" * 8)
    usual = {"dataset": f"text:{tmp_path}", "model": "textcnn", "global_batch_size": 4}
    config = recipe.resolve(TrainConfig(**usual))
    other = recipe.resolve(TrainConfig(**usual, text={"max_length": 9}))
    theirs: Any = SimpleNamespace(config=config, encoding="their tokenizer")
    assert weights._encoding(config, theirs) == "their tokenizer"
    assert weights._encoding(recipe.resolve(TrainConfig(dataset="digits")), theirs) == ""
    with pytest.raises(ConfigError, match="weights must be those of a run with the same --text options, whose tok"):
        weights._encoding(other, theirs)
    torch.save(models.build(config, data.read(config).spec).state_dict(), tmp_path / "mine.pt")
    notes: list[str] = []
    found = weights.find_weights(replace(config, weights=f"{tmp_path}/mine.pt"), "", notes.append)
    assert (found[2], len(notes)) == ("", 2)
    assert notes[0].startswith(f"weights of {tmp_path}/mine.pt: a file has no tokenizer; only ")


@pytest.mark.parametrize("tokenizer", ["theirs", "another"])
def test_a_sweeps_weights_know_its_tokenizer(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe.resolve(TrainConfig(weights="first"))
    monkeypatch.setattr(preparation, "find_weights", lambda *_: (b"weights", "digest", "theirs"))
    cell = PlannedCell(0, Cell("one", {}), config, decided_of(config))
    board: Any = SimpleNamespace(line=print)
    kept: list[str] = []
    monkeypatch.setattr(preparation.checkpoints, "keep_initial", lambda _, digest, content: kept.append(digest))
    folder: Any = object()
    ready = Preparation(config, board, folder=folder)
    ready._read = {preparation._of_data(config): SimpleNamespace(encoding=tokenizer)}
    ready.read_weights([cell])
    if tokenizer == "theirs":
        assert (kept, cell.decided.weights_digest, cell.state) == (["digest"], "digest", "waiting")
    else:
        assert (kept, cell.config) == ([], None)
        assert cell.row.shown.note.startswith("weights must be of a run with the same training texts in a sweep")
