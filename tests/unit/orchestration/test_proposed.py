"""What a search proposes, what it goes by, and which run it names as its best."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial

from cifar_ray import data
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Cell, SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.sweep import driver, plan, tuning
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.result import repeats_of, winner_of
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tasks import LOSS, USUAL
from cifar_ray.tasks.choosing import Goal
from tests.support import studies, typed
from tests.support.cells import Search, configs_of, end
from tests.support.helpers import Recorder, train_here

GOAL = Goal("test/accuracy", "max", USUAL)
DONE, STOPPED, FAILED, SKIPPED = boards.FINISHED, boards.STOPPED, boards.FAILED, boards.SKIPPED
RATES = (0.05, 1e-9)
needs_optuna = pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="needs the extra `optuna`")


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_MOST_DRAWS", 12)


def made(samples: int, **grid: object) -> SweepConfig:
    usual = {"dataset": "digits", "model": "simple_cnn", "batch_size": 16}
    train = {name: value for name, value in usual.items() if name not in grid}
    return sweeps.from_mapping({"name": "s", "search": "optuna", "samples": samples, "train": train, "grid": grid})


@needs_optuna
def test_proposals_learn_from_the_cells_before(tmp_path: Path) -> None:
    def score(cell: Any) -> float:
        return -abs(math.log10(cell.config.lr) + 2)

    search = Search(made(25, lr="loguniform:0.00001:1", epochs="int:1:20"), tmp_path, GOAL)
    search.goes_on(score)
    scores = [score(cell) for cell in search.cells]
    assert sum(scores[10:]) / 15 > -1.1  # random ones have -1.3 on average: the distance to 0.01 in powers of ten
    assert all(1e-5 <= cell.config.lr <= 1 and 1 <= cell.config.epochs <= 20 for cell in search.cells if cell.config)
    assert search.told == scores


@needs_optuna
def test_a_search_ends_when_all_has_been_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = Search(made(9, batch_size=[16, 32], augment=["crop", "mixup", "none"]), tmp_path, GOAL)
    search.goes_on(lambda _: 0.5)
    assert len(search.proposed) == len({str(proposal) for proposal in search.proposed}) == 6
    assert len({cell.slug for cell in search.cells}) == 9
    assert [cell.state for cell in search.cells] == [DONE] * 6 + [SKIPPED] * 3
    assert search.is_over
    assert "sample 9: skipped, Optuna proposes nothing that has not been tried" in capsys.readouterr().out


@needs_optuna
def test_what_cannot_run_is_skipped_and_no_cell_of_later_drivers(tmp_path: Path, few_draws: None) -> None:
    search = Search(made(12, batch_size=[16, 2000, 3000], lr="uniform:0.1:0.9"), tmp_path, GOAL)
    search.goes_on(lambda cell: None if cell.cell.values["lr"] > 0.6 else 0.25)
    states = [cell.state for cell in search.cells]
    assert set(states) == {DONE, FAILED, SKIPPED}
    assert search.told == search.again().told == [0.25] * states.count(DONE)
    hopeless = next(cell for cell in search.cells if cell.state == SKIPPED)
    assert hopeless.row.shown.note.startswith("batch_size must leave at least one step per epoch")
    assert hopeless.described(search.config)["params"]["batch_size"] == str(hopeless.cell.values["batch_size"])


@needs_optuna
def test_a_later_driver_knows_how_all_came_out_trains_none_twice_and_proposes_others(tmp_path: Path) -> None:
    axes = {"lr": "loguniform:0.001:0.1", "model": ["resnet"], "model_options.blocks": [[1, 1], [2, 2]]}
    first = Search(made(8, **axes), tmp_path, GOAL)
    first.goes_on(lambda cell: None if cell.index == 1 else cell.index / 10, most=4)
    end(first.cells[2], STOPPED)  # early, which counts with its last figure
    end(first.cells[3], boards.WAITING)  # it was killed, and is trained on under its name
    again = first.again()
    assert again.told == [0.0, 0.2]
    assert [cell.is_open for cell in again.cells] == [False] * 4 + [True] * 4
    assert again.proposed == first.proposed
    again.goes_on(lambda _: 0.75, most=1)
    assert (again.cells[3].state, again.told) == (DONE, [0.0, 0.2, 0.75])
    again.goes_on(lambda _: 0.5)
    assert len({str(proposal) for proposal in again.proposed}) == len({cell.slug for cell in again.cells}) == 8


@needs_optuna
def test_a_search_prepares_for_every_value_that_it_may_propose(few_draws: None) -> None:
    axes = {"dataset": ["mnist", "digits"], "batch_size": [2000, 16], "topology": ["1x1", "1x2", "2x2"]}
    sweep = made(4, **axes, lr="uniform:0.1:0.9")
    probes = plan.probes(sweep, plan.planned(sweep))
    wanted = [(name, value) for name, values in {**axes, "lr": [0.1, 0.9]}.items() for value in values]
    assert all(cell.cell.values[name] == value for cell, (name, value) in zip(probes, wanted, strict=True))
    assert {cell.cell.values["batch_size"] for cell in probes if cell.config is not None} == {2000, 16}
    with pytest.raises(ConfigError, match=r"^grid must have a cell that can run here; .*at least one step per epoch"):
        driver.planned(made(3, batch_size=[2000, 3000]))  # as where a data set has shrunk
    sweep = replace(made(2, epochs="int:3:9"), scheduler="asha")
    _, _, probes = driver.planned(sweep)
    assert tuning.scheduler_of(sweep, GOAL, [probe.config for probe in probes if probe.config])._max_t == 9


@needs_optuna
def test_what_is_proposed_after_a_resume_computes_as_before(tmp_path: Path) -> None:
    """Nothing is measured again, which would take a Ray that is not here."""
    config = made(3, lr="uniform:0.1:0.9", model=["simple_cnn"], device=["cpu"], epochs=[1000])
    search = Search(config, tmp_path, GOAL)
    search.goes_on(lambda _: 0.5, most=2)
    for cell in search.cells[:2]:
        cell.decided = replace(cell.decided, precision="bf16", convolutions="contiguous")
    again = search.again()
    new = again.cells[2]
    again.ask(new)
    Preparation(config.base, Board([], 0.0)).decide_arithmetic(again.cells)
    assert (new.decided.precision, new.decided.convolutions) == ("bf16", "contiguous")


def test_without_optuna_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"cifar-ray\[optuna\]"):
        plan.probes(made(1, lr="uniform:0.1:0.9"), [PlannedCell(0, Cell("one", {}))])


def searching(**values: Any) -> SweepConfig:
    train = {"dataset": "digits", "model": "simple_cnn", "epochs": 5, "steps_per_epoch": 4, "precision": "fp32"}
    return sweeps.from_mapping({"name": "s", "train": train, "grid": {"lr": [*RATES]}, **values})


Trained = dict[float, tuple[list[dict[str, float]], dict[str, float]]]
"""Learning rate -> the results of every epoch, and the figures of the end."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Trained]:
    """A run that learns and one that does not, with the labels of the test as they are or others."""

    @cache
    def train(others: bool) -> Trained:
        runs: Trained = {}
        for config in configs_of(searching(scheduler="asha")):
            dataset = data.read(config)
            if others:  # what learns is wrong there, and what does not may be right
                columns = {**dataset.test.columns, "labels": (dataset.test["labels"] + 1) % 10}
                dataset = replace(dataset, test=replace(dataset.test, columns=columns))
            one = replace(config, cpus_per_worker=1)
            outcome = train_here(one, dataset, tmp_path_factory.mktemp("run"), seen := Recorder())
            rows = [{"epoch": each.row.step, **each.row.metrics} for each in seen.epochs]
            runs[config.lr] = rows, {**outcome.metrics, **outcome.times}
        return runs

    return train


def stopped_by_asha(runs: Trained) -> dict[float, float]:
    """The epoch after which Ray Tune's scheduler stops each run, one after another."""
    sweep = searching(scheduler="asha")
    configs = configs_of(sweep)
    rule, ended = tuning.scheduler_of(sweep, goal_of(sweep, configs), configs), {}
    trials = [Trial("stub", stub=True, trial_id=str(config.lr)) for config in configs]
    controller = SimpleNamespace(get_live_trials=lambda: trials)
    for trial, config in zip(trials, configs, strict=True):
        rows, _ = runs[config.lr]
        rule.on_trial_add(controller, trial)
        stops = (row["epoch"] for row in rows[:-1] if rule.on_trial_result(controller, trial, row) == "STOP")
        if epoch := next(stops, None):
            ended[config.lr] = epoch
        rule.on_trial_complete(controller, trial, rows[-1])
    return ended


def proposed_by_optuna(runs: Trained, folder: Path) -> list[Any]:
    sweep = searching(search="optuna", samples=15, grid={"lr": [*RATES], "weight_decay": "uniform:0:0.1"})
    folder.mkdir()
    search = Search(sweep, folder, goal_of(sweep, configs_of(sweep)))
    search.goes_on(lambda cell: runs[cell.config.lr][1] if cell.config else {})
    return search.proposed


@pytest.mark.slow
@pytest.mark.parametrize("chooser", ["asha", pytest.param("optuna", marks=needs_optuna)])
def test_no_search_goes_by_labels_of_the_test(chooser: str, trained: Callable[[bool], Trained], tmp_path: Path) -> None:
    def chosen(others: bool) -> Any:
        runs = trained(others)
        return proposed_by_optuna(runs, tmp_path / str(others)) if chooser == "optuna" else stopped_by_asha(runs)

    assert chosen(False) == chosen(True) != {}
    tested = [[end["test/accuracy"] for _, end in trained(others).values()] for others in (False, True)]
    assert tested[0] != tested[1]  # so the figures of the test did change


@pytest.mark.parametrize("search", ["grid", "random", pytest.param("optuna", marks=needs_optuna)])
def test_every_search_takes_every_figure_of_the_validation_and_none_of_the_test(search: str) -> None:
    for scheduler in ("none", "asha"):
        values = {"search": search, "scheduler": scheduler, **({} if search == "grid" else {"samples": 1})}
        sweep = searching(**values, objective="val/accuracy:max")
        runs = plan.planned(sweep)
        runs += plan.probes(sweep, runs)
        for name in (figure.name for figure in (*USUAL.figures, LOSS) if not figure.optional):
            for better in ("min", "max"):
                sweep = searching(**values, objective=f"val/{name}:{better}")
                plan.refuse(sweep, runs)
                goal = goal_of(sweep, [run.config for run in runs if run.config])
                assert (goal.metric, goal.better) == (f"val/{name}", better)
            for metric in (f"test/{name}", f"chosen/test/{name}"):
                with pytest.raises(ConfigError, match=r"^objective must "):
                    plan.refuse(searching(**values, objective=f"{metric}:max"), runs)


def test_the_winner_is_the_run_that_its_report_names() -> None:
    """By its chosen epoch; by the last one, the other run would win."""
    sweep = searching(scheduler="asha")
    trials, configs = plan.planned(sweep), configs_of(sweep)
    runs = [studies.trial(seed=seed, tags={"cifar_ray.chosen_by": "val"}) for seed in range(2)]
    for run, trial, (best, last) in zip(runs, trials, [(0.9, 0.5), (0.8, 0.7)], strict=True):
        figures = {"val/accuracy": last, "best/accuracy": best, "val/loss": 0.5, "test/accuracy": 0.1}
        end(trial, figures=figures)
        run.metrics.update(figures)
    of = TaskFigures(USUAL).chooser(runs)
    assert [of.measure(run) for run in runs] == [90.0, 80.0]
    assert data.facts(configs[0]).measured == "val"
    winner = winner_of(goal_of(sweep, configs), trials)
    assert (winner.name, winner.value) == (trials[0].cell.name, 0.9)
    for objective in ("val/accuracy:min", "val/loss:min"):  # which choose no epoch
        assert goal_of(replace(sweep, objective=objective), configs).value(trials[0].row.figures) == 0.5


def found(ends: list[tuple[str, float]], repeated: tuple[float, ...] = (), images: int = 0, **values: Any) -> Any:
    """The winner among runs with learning rates of 0.1, 0.2 and so on that have ended with these accuracies.

    With ``repeated``, it is trained again, with these.
    """
    rates = [round(0.1 * number, 1) for number in range(1, len(ends) + 1)]
    usual = {"scheduler": "asha", "repeat": len(repeated)} if values.pop("races", True) else {}
    train = {"dataset": "digits", "model": "simple_cnn", "epochs": 3}
    sweep = sweeps.from_mapping({"name": "s", "train": train, "grid": {"lr": rates}, **usual, **values})
    cells = plan.planned(replace(sweep, scheduler="none", objective=None, repeat=0))  # without validation images
    for cell, (state, value) in zip(cells, ends, strict=True):
        figures = {"test/accuracy": value, "images_per_s": 1000 * value} | ({"test/images": images} if images else {})
        end(cell, state, figures=figures)
    goal = goal_of(sweep, [cell.config for cell in cells if cell.config])
    if goal is None:
        return None
    again = repeats_of(goal, sweep, cells)
    assert len(again) == sweep.repeat
    for cell, value in zip(again, repeated, strict=True):
        end(cell, figures={goal.metric: value})
    assert repeats_of(goal, sweep, [*cells, *again]) == []
    assert len({cell.cell.name for cell in (*cells, *again)}) == len(cells) + len(again)
    return winner_of(goal, [*cells, *again])


def ahead(rate: float, by: str, count: int = 2) -> str:
    return f"{by} lr{rate} 1x1 seed0, the second of {count} runs that finished"


AGAIN = "75.00%, with 3 other seeds 87.50% (standard deviation 12.50 points)"
ONCE = "75.00%, with 1 other seed 25.00%"
CHANCE = "(by chance alone with p = 8.6e-07)"
MIXED = [(STOPPED, 0.9), (DONE, 0.5), (FAILED, 0.95), (DONE, math.nan), (DONE, 0.25)]
SPEED = {"objective": "images_per_s:min", "races": False}


def done(*values: float) -> list[tuple[str, float]]:
    return [(DONE, value) for value in values]


@pytest.mark.parametrize(
    ("ends", "values", "rate", "rest"),
    [
        (done(0.5, 0.8125, 0.75), {}, 0.2, f"81.25%, {ahead(0.3, '6.25 points ahead of', 3)}"),
        (MIXED, {}, 0.2, f"50.00%, {ahead(0.5, '25.00 points ahead of')}"),
        (done(0.5, 0.8), SPEED, 0.1, f"500.0000, {ahead(0.2, '300.0000 ahead of')}"),
        (done(0.5, 0.5), {}, 0.1, f"50.00%, {ahead(0.2, 'as good as')}"),
        ([(STOPPED, 0.9), (DONE, 0.5)], {}, 0.2, "50.00%, the only run that finished"),
        (done(0.9, 0.92), {"images": 10_000}, 0.2, f"92.00%, {ahead(0.1, '2.00 points ahead of')} {CHANCE}"),
        (done(0.75, 0.5), {"repeated": (0.75, 0.875, 1.0)}, 0.1, f"{AGAIN}, {ahead(0.2, '37.50 points ahead of')}"),
        (done(0.75, 0.5), {"repeated": (0.25,)}, 0.1, f"{ONCE}, {ahead(0.2, '25.00 points behind')}"),
    ],
)
def test_the_best_of_the_whole_runs_wins(
    ends: list[tuple[str, float]], values: dict[str, Any], rate: float, rest: str
) -> None:
    winner = found(ends, **values)
    figure = "images_per_s" if "objective" in values else "test accuracy"
    assert winner.sentence == f"lr{rate} 1x1 seed0: {figure} {rest}"
    config = typed.run(*winner.command.removeprefix("cifar-ray train ").split())
    assert (config.lr, config.epochs, config.dataset) == (rate, 6, "digits")


def test_no_run_wins_where_there_is_nothing_to_win_by() -> None:
    assert found(done(0.5, 0.75), races=False) is None  # a grid is trained for a table of all its runs
    assert found([(STOPPED, 0.5), (FAILED, 0.75)]) is None
    assert found(done(0.5, 0.75), races=False, objective="bubble/theory:min") is None
