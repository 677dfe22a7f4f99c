"""What a search goes by: the validation figure, whatever the test figures are, and the same as its report."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial

from cifar_ray import data
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.orchestration.sweep import plan, tuning
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.result import winner_of
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tasks import LOSS, USUAL
from tests.support import studies
from tests.support.cells import Search, configs_of, end
from tests.support.helpers import Recorder, train_here

RATES = (0.05, 1e-9)
TRAIN = {"dataset": "digits", "model": "simple_cnn", "epochs": 5, "steps_per_epoch": 4, "precision": "fp32"}


def searching(**values: Any) -> SweepConfig:
    return sweeps.from_mapping({"name": "s", "train": TRAIN, "grid": {"lr": [*RATES]}, **values})


Trained = dict[float, tuple[list[dict[str, float]], dict[str, float]]]
"""Learning rate -> the results of every epoch, and the figures of the end."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Trained]:
    """A run that learns and one that does not, with the labels of the test as they are or others."""

    @functools.cache
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


def stopped_by(scheduler: str, runs: Trained) -> dict[float, float]:
    """The epoch after which Ray Tune's scheduler stops each run, one after another."""
    sweep = searching(scheduler=scheduler)
    configs = configs_of(sweep)
    goal = goal_of(sweep, configs)
    assert goal is not None
    rule, ended = tuning.scheduler_of(sweep, goal, configs), {}
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
    grid = {"lr": [*RATES], "weight_decay": "uniform:0:0.1"}
    sweep = searching(search="optuna", samples=20, grid=grid)
    goal = goal_of(sweep, configs_of(sweep))
    folder.mkdir()
    search = Search(sweep, folder, goal)
    search.goes_on(lambda cell: runs[cell.config.lr][1] if cell.config else {})
    return search.proposed


@pytest.mark.slow
@pytest.mark.parametrize("chooser", ["asha", "optuna"])
def test_a_search_chooses_the_same_whatever_the_labels_of_the_test_are(
    chooser: str, trained: Callable[[bool], Trained], tmp_path: Path
) -> None:
    if chooser == "optuna":
        pytest.importorskip("optuna", reason="needs the extra `optuna`")

    def chosen(others: bool) -> Any:
        runs = trained(others)
        return proposed_by_optuna(runs, tmp_path / str(others)) if chooser == "optuna" else stopped_by(chooser, runs)

    assert chosen(False) == chosen(True) != {}
    tested = [[end["test/accuracy"] for _, end in trained(others).values()] for others in (False, True)]
    assert tested[0] != tested[1]  # so the figures of the test did change


@pytest.mark.parametrize("search", ["grid", "random", "optuna"])
@pytest.mark.parametrize("scheduler", ["none", "asha"])
def test_every_search_takes_every_figure_of_the_validation_and_none_of_the_test(search: str, scheduler: str) -> None:
    values = {"search": search, "scheduler": scheduler, **({} if search == "grid" else {"samples": 1})}
    figures = [figure.name for figure in (*USUAL.figures, LOSS) if not figure.optional]
    assert len(figures) > 4
    sweep = searching(**values, objective="val/accuracy:max")
    runs = plan.planned(sweep)
    runs += plan.probes(sweep, runs)
    for name in figures:
        for better in ("min", "max"):
            sweep = searching(**values, objective=f"val/{name}:{better}")
            plan.refuse(sweep, runs)
            goal = goal_of(sweep, [run.config for run in runs if run.config])
            assert goal is not None
            assert (goal.metric, goal.better) == (f"val/{name}", better)
        for metric in (f"test/{name}", f"chosen/test/{name}"):
            with pytest.raises(ConfigError, match=r"^objective must "):
                plan.refuse(searching(**values, objective=f"{metric}:max"), runs)


def test_the_winner_is_the_run_that_its_report_names() -> None:
    """By its chosen epoch; by the last one, the other run would win."""
    sweep = searching(scheduler="asha")
    trials = plan.planned(sweep)
    runs = [studies.trial(seed=seed, tags={"cifar_ray.chosen_by": "val"}) for seed in range(2)]
    for run, trial, (best, last) in zip(runs, trials, [(0.9, 0.5), (0.8, 0.7)], strict=True):
        figures = {"val/accuracy": last, "best/accuracy": best, "val/loss": 0.5, "test/accuracy": 0.1}
        end(trial, figures=figures)
        run.metrics.update(figures)
    of = TaskFigures(USUAL).chooser(runs)
    reported = [of.measure(run) for run in runs]
    assert reported == [90.0, 80.0]
    goal = goal_of(sweep, configs_of(sweep))
    assert goal is not None
    assert data.facts(configs_of(sweep)[0]).measured == "val"
    winner = winner_of(goal, trials)
    assert winner is not None
    assert (winner.name, winner.value) == (trials[reported.index(max(reported))].cell.name, 0.9)
    for objective, value in (("val/accuracy:min", 0.5), ("val/loss:min", 0.5)):
        other = goal_of(replace(sweep, objective=objective), configs_of(sweep))
        assert other is not None
        assert other.value(trials[0].row.figures) == value  # which chose no epoch
