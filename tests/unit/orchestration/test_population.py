"""A population without Ray: its runs are trained here, one after another, in any order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cifar_ray import storage
from cifar_ray.config import cells, sweepfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.data import Dataset
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.run import run_folder
from cifar_ray.orchestration.sweep import planner, population
from cifar_ray.orchestration.sweep.goal import chooser_of, goal_of
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.population import Population
from cifar_ray.training import checkpoint
from cifar_ray.training.stopping import StoppedError
from tests.support.helpers import train_here

RATES = [0.1, 1e-9, 0.05, 0.08]
TRAIN = {"dataset": "digits", "model": "simple_cnn", "epochs": 3, "precision": "fp32", "cpus_per_worker": 1}


def planned(folder: Path, **values: object) -> tuple[SweepConfig, list[PlannedTrial]]:
    """The trials of a population as a driver has them, with the folders that an earlier one has made."""
    train = {**TRAIN, "choose_by": "test", "steps_per_epoch": 8}
    sweep: SweepConfig = sweepfile.from_mapping(
        {"name": "p", "scheduler": "pbt", "train": train, "grid": {"lr": RATES}, **values}
    )
    trials = planner.plan(cells.cells(sweep, planner.draw(sweep)), chooser=chooser_of(sweep))
    planner.refuse(sweep, trials)
    for trial in trials:
        own = storage.at(str(folder)).below(trial.slug)
        trial.folder = run_folder.reopen(own) if own.exists() else None
    return sweep, trials


def train(trials: list[PlannedTrial], digits: Dataset, folder: Path, pause_after: int | None) -> dict[str, str]:
    """Train those that wait until they pause; the weights of those that come to their end."""
    ended = {}
    for trial in trials:
        if trial.state != boards.WAITING:
            continue
        assert trial.config is not None
        if trial.folder is None:
            trial.folder, lock = run_folder.create(trial.config, "", storage.at(str(folder)), trial.slug)
            lock.release()
        trial.state = boards.FINISHED
        try:
            outcome = train_here(
                trial.config, digits, trial.folder.folder.disk / "checkpoints", pause_after=pause_after
            )
            ended[trial.cell.name] = outcome.weights_sha256
        except StoppedError as stop:
            stop.__traceback__ = None
            trial.state = boards.PAUSED
    return ended


def trained(folder: Path, digits: Dataset, turned: bool = False) -> tuple[list[PlannedTrial], dict[str, str]]:
    """A whole population; ``turned``: its runs are trained in the other order."""
    sweep, trials = planned(folder)
    goal = goal_of(sweep, [trial.config for trial in trials if trial.config])
    assert goal is not None
    together = Population(sweep, storage.at(str(folder)), trials)
    assert together.take_up() == []
    order = trials[::-1] if turned else trials
    while (pause_after := together.pause_after) is not None:
        train(order, digits, folder, pause_after)
        together.advance(goal)
    return trials, train(order, digits, folder, None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> tuple[list[PlannedTrial], dict[str, str]]:
    return trained(tmp_path_factory.mktemp("whole"), digits)


@pytest.mark.slow
def test_the_worst_run_goes_on_from_a_better_one(whole: tuple[list[PlannedTrial], dict[str, str]]) -> None:
    trials, ended = whole
    assert ended.keys() == {trial.cell.name for trial in trials}
    bad = next(trial for trial in trials if trial.lineage and trial.lineage[0].epoch == 1)
    first = bad.lineage[0]
    assert (first.step, first.before) == (8, bad.explored)
    source = next(trial for trial in trials if trial.cell.name == first.source)
    assert first.theirs == source.explored
    assert bad.config is not None
    assert bad.config.lr == bad.lineage[-1].after["lr"] in RATES
    assert bad.folder is not None
    made = checkpoint.latest(bad.folder.folder.disk / "checkpoints")
    assert made is not None
    assert made[1].config.lr == bad.config.lr == bad.folder.config().lr
    rows = {row.step: row.metrics["test/accuracy"] for row in made[1].history if row.kind == "epoch"}
    assert sorted(rows) == [1, 2, 3]
    assert source.folder is not None
    theirs = checkpoint.latest(source.folder.folder.disk / "checkpoints")
    assert theirs is not None
    best = next(row.metrics["test/accuracy"] for row in theirs[1].history if row.kind == "epoch")
    assert rows[1] < best  # its own of the first epoch stays


@pytest.mark.slow
def test_the_same_lineage_gives_the_same_bits_in_whatever_order_runs_train(
    whole: tuple[list[PlannedTrial], dict[str, str]], digits: Dataset, tmp_path: Path
) -> None:
    again, ended = trained(tmp_path, digits, turned=True)
    assert [trial.lineage for trial in again] == [trial.lineage for trial in whole[0]]
    assert ended == whole[1]


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_later_driver_does_what_was_decided(
    whole: tuple[list[PlannedTrial], dict[str, str]],
    copied: bool,
    digits: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver is killed after it has decided: before it has copied a checkpoint, or before it has noted that."""
    sweep, trials = planned(tmp_path)
    goal = goal_of(sweep, [trial.config for trial in trials if trial.config])
    assert goal is not None
    folder, take_over = storage.at(str(tmp_path)), population._take_over

    def killed(*arguments: PlannedTrial) -> None:
        if copied:
            take_over(*arguments)  # type: ignore[call-arg, arg-type]
        raise KeyboardInterrupt

    together = Population(sweep, folder, trials)
    train(trials, digits, tmp_path, together.pause_after)
    monkeypatch.setattr(population, "_take_over", killed)
    with pytest.raises(KeyboardInterrupt):
        together.advance(goal)
    monkeypatch.setattr(population, "_take_over", take_over)

    _, later = planned(tmp_path)
    train(later[:1], digits, tmp_path, 1)  # pauses at once
    later[0].state = boards.WAITING
    together = Population(sweep, folder, later)
    (taken,) = together.take_up()
    assert taken.takeover in [trial.lineage[0] for trial in whole[0] if trial.lineage]
    assert taken.takeover.epoch == 1
    assert taken.saved.weights_sha256 == taken.takeover.weights_sha256
    assert together.take_up() == []
    assert together.pause_after == 2
    train(later, digits, tmp_path, 2)
    _, last = planned(tmp_path)
    together = Population(sweep, folder, last)
    assert together.take_up() == []
    assert {trial.state for trial in last} == {boards.PAUSED}  # none is trained again
    together.advance(goal)
    assert train(last, digits, tmp_path, together.pause_after) == whole[1]


def test_a_run_that_has_diverged_takes_over_and_goes_on_with_the_others_history(
    digits: Dataset, tmp_path: Path
) -> None:
    sweep, trials = planned(tmp_path)
    goal = goal_of(sweep, [trial.config for trial in trials if trial.config])
    assert goal is not None
    lost = trials[2]
    assert lost.config is not None
    lost.folder, lock = run_folder.create(lost.config, "", storage.at(str(tmp_path)), lost.slug)
    lock.release()
    lost.state = boards.PAUSED  # before its first checkpoint
    together = Population(sweep, storage.at(str(tmp_path)), trials)
    train(trials, digits, tmp_path, together.pause_after)
    taken = together.advance(goal)
    assert lost.cell.name in {one.trial.cell.name for one in taken}
    newest = checkpoint.latest(lost.folder.folder.disk / "checkpoints")
    assert newest is not None
    assert [row.step for row in newest[1].history if row.kind == "epoch"] == [1]
    assert newest[1].score is not None
    decided = json.loads((tmp_path / population.FILE).read_text())  # as after a kill before it says that all are copied
    (tmp_path / population.FILE).write_text(json.dumps([{**decided[0], "copied": False}]))
    again = Population(sweep, storage.at(str(tmp_path)), trials).take_up()
    assert [one.saved for one in again] == [one.saved for one in taken]
    assert train([lost], digits, tmp_path, None).keys() == {lost.cell.name}


def test_all_that_diverged_stay_behind_where_none_is_left(tmp_path: Path) -> None:
    sweep, trials = planned(tmp_path)
    goal = goal_of(sweep, [trial.config for trial in trials if trial.config])
    assert goal is not None
    for trial in trials:
        trial.state = boards.PAUSED
    assert Population(sweep, storage.at(str(tmp_path)), trials).advance(goal) == []
    assert {trial.state for trial in trials} == {boards.PAUSED}


@pytest.mark.parametrize("damaged", [json.dumps([{"epoch": "x"}]).encode(), b"[", b"\xff\xfe"])
def test_a_damaged_record_is_refused_in_a_sentence(tmp_path: Path, damaged: bytes) -> None:
    sweep, trials = planned(tmp_path)
    (tmp_path / population.FILE).write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"resume needs .*population.json, which is damaged or cannot be read"):
        Population(sweep, storage.at(str(tmp_path)), trials)


def test_runs_must_be_longer_than_the_time_between_two_comparisons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pbt\.every must be less than the 3 epochs of a run, got 3"):
        planned(tmp_path, pbt={"every": 3})
