"""A search whose trials Optuna proposes: what it proposes, what it is told, and what a later driver knows."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cifar_ray.orchestration.sweep.planned_trial import PlannedTrial
from cifar_ray.orchestration.sweep.proposals import OptunaProposer
from cifar_ray.orchestration.sweep.trial import TrialFinished, TrialSpec, TrialTooLarge, last_result

from cifar_ray import storage
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.sweep import planner, proposals
from cifar_ray.orchestration.sweep.driver import Driver
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.orchestration.sweep.tuning import _Queue
from cifar_ray.tasks import USUAL
from cifar_ray.tasks.choosing import Goal
from cifar_ray.tracking.study import FOLDER_TAG, Sweep

optuna = pytest.importorskip("optuna", reason="needs the extra `optuna`")
COMPLETE, FAIL = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL
GOAL = Goal("test/accuracy", "max", USUAL)


def made(samples: int, **grid: object) -> SweepConfig:
    train = {name: value for name, value in {"dataset": "digits", "batch_size": 16}.items() if name not in grid}
    return sweeps.from_mapping({"name": "s", "search": "optuna", "samples": samples, "train": train, "grid": grid})


class Search:
    """A search whose trials need no training: what a driver keeps of them, and what Optuna is told."""

    def __init__(
        self, config: SweepConfig, folder: Path, trials: list[PlannedTrial] | None = None, goal: Goal = GOAL
    ) -> None:
        self.config, self.folder = config, storage.at(str(folder))
        self.trials = trials or planner.open_trials(config)
        self.proposer = OptunaProposer(config, goal, self.trials, self._begin, self._drop)

    def _begin(self, trial: PlannedTrial) -> TrialSpec | None:
        if trial.config is None:
            self._drop(trial, trial.reason)
            return None
        trial.state = boards.RUNNING
        return TrialSpec(trial.index, trial.config, trial.decided, self.folder.below(trial.slug))

    def _drop(self, trial: PlannedTrial, reason: str) -> None:
        trial.state, trial.reason, trial.is_open = boards.SKIPPED, reason, False

    def goes_on(self, value: Callable[[PlannedTrial], Mapping[str, float] | float | None], most: int = 1000) -> None:
        """Train up to so many trials, one after another, with these figures or this value; without, one fails."""
        while most and (spec := self.proposer.propose()) is not None:
            trial, most = self.trials[spec.index], most - 1
            score = value(trial)
            trial.state = boards.FAILED if score is None else boards.FINISHED
            trial.figures = score if isinstance(score, Mapping) else {} if score is None else {GOAL.metric: score}
            self.proposer.ended(trial.index, None if score is None else trial.figures)

    def again(self) -> Search:
        """The search as a later driver finds it: the cells from its folder, how they came out from MLflow."""
        self.folder.write("sweep.yaml", sweeps.to_yaml(self.config))
        planner.write_cells(self.folder, [trial.described(self.config) for trial in self.trials])
        config, trials = planner.read(Sweep("s", [], "", "", tags={FOLDER_TAG: self.folder.address}))
        for trial, before in zip(trials, self.trials, strict=True):
            trial.state, trial.figures = before.state, before.figures
        return Search(config, Path(self.folder.address), trials)

    @property
    def told(self) -> list[tuple[object, float | None]]:
        """What Optuna knows of every trial: its state and its value."""
        return [(trial.state, trial.value) for trial in self.proposer._search._ot_study.trials]

    @property
    def proposed(self) -> list[dict[str, object]]:
        return [dict(trial.proposal) for trial in self.trials if trial.proposal is not None]


def test_proposals_learn_from_the_trials_before(tmp_path: Path) -> None:
    def score(trial: PlannedTrial) -> float:
        assert trial.config is not None
        return -abs(math.log10(trial.config.lr) + 2)

    search = Search(made(40, lr="loguniform:0.00001:1", epochs="int:1:20"), tmp_path)
    search.goes_on(score)
    scores = [score(trial) for trial in search.trials]
    assert sum(scores[10:]) / 30 > -1.1  # random ones have -1.3 on average: the distance to 0.01 in powers of ten
    assert all(
        1e-5 <= trial.config.lr <= 1 and 1 <= trial.config.epochs <= 20 for trial in search.trials if trial.config
    )
    assert search.told == [(COMPLETE, value) for value in scores]


def test_every_trial_is_another_and_the_search_ends_when_all_have_been_tried(tmp_path: Path) -> None:
    search = Search(made(9, batch_size=[16, 32], augment=["crop", "mixup", "none"]), tmp_path)
    search.goes_on(lambda _: 0.5)
    assert len(search.proposed) == len({str(proposal) for proposal in search.proposed}) == 6
    assert len({trial.slug for trial in search.trials}) == 9
    states = [trial.state for trial in search.trials]
    assert states == [boards.FINISHED] * 6 + [boards.SKIPPED] * 3
    assert search.trials[-1].reason == "Optuna proposes nothing that has not been tried"


def test_what_cannot_run_and_what_fails_is_told_as_failed(tmp_path: Path) -> None:
    search = Search(made(12, batch_size=[16, 2000, 3000], lr="uniform:0.1:0.9"), tmp_path)
    search.goes_on(lambda trial: None if trial.cell.values["lr"] > 0.6 else 0.25)
    ends = {boards.FINISHED: (COMPLETE, 0.25), boards.FAILED: (FAIL, None), boards.SKIPPED: (FAIL, None)}
    assert {trial.state for trial in search.trials} == set(ends)
    assert search.told == [ends[trial.state] for trial in search.trials]
    hopeless = next(trial for trial in search.trials if trial.state == boards.SKIPPED)
    assert hopeless.reason.startswith("batch_size must leave at least one step per epoch")
    assert hopeless.described(search.config)["params"]["batch_size"] == str(hopeless.cell.values["batch_size"])


def test_a_later_driver_knows_how_all_came_out_trains_none_twice_and_proposes_others(tmp_path: Path) -> None:
    axes = {"lr": "loguniform:0.001:0.1", "batch_size": [16, 32], "model_options.blocks": [[1, 1], [2, 2]]}
    first = Search(made(8, **axes), tmp_path)
    first.goes_on(lambda trial: None if trial.index == 1 else trial.index / 10, most=3)
    running = first.proposer.propose()
    assert running is not None
    first.trials[running.index].state = boards.WAITING  # it was killed, and is trained on under its name
    again = first.again()
    assert again.told == [(COMPLETE, 0.0), (FAIL, None), (COMPLETE, 0.2)]
    assert [trial.is_open for trial in again.trials] == [False] * 4 + [True] * 4
    assert again.proposed == first.proposed
    again.proposer.ended(running.index, {GOAL.metric: 0.75})
    assert again.told[-1] == (COMPLETE, 0.75)
    assert again.proposer._search._ot_study.best_trial.params["lr"] == first.proposed[3]["lr"]
    again.goes_on(lambda _: 0.5)
    assert len({str(proposal) for proposal in again.proposed}) == 8
    assert len({trial.slug for trial in again.trials}) == 8


def test_a_run_stopped_early_counts_with_its_last_figure_after_a_resume_too(tmp_path: Path) -> None:
    first = Search(made(4, lr="uniform:0.1:0.9"), tmp_path)
    first.goes_on(lambda _: 0.5, most=2)
    first.trials[0].state = boards.STOPPED
    assert first.again().told == [(COMPLETE, 0.5), (COMPLETE, 0.5)]


def test_a_run_that_a_limit_of_its_own_has_stopped_counts_the_same_in_its_driver_and_later(tmp_path: Path) -> None:
    search = Search(made(4, lr="uniform:0.1:0.9"), tmp_path)
    queue = _Queue([], search.proposer)
    halted, figures = TrialFinished(None, stopped_by="max_time"), {GOAL.metric: 0.5}
    ends = [
        (boards.STOPPED, halted, figures),
        (boards.STOPPED, halted, {}),  # it ended no epoch in this driver
        (boards.FAILED, TrialFinished(None, "rank 0: it died"), figures),
        (boards.FAILED, TrialTooLarge("no room"), figures),
    ]
    for trial, (state, finished, latest) in zip(search.trials, ends, strict=True):
        assert queue.suggest(trial.cell.name) is not None
        trial.state, trial.figures = state, figures
        queue.on_trial_complete(f"sample {trial.index + 1}", dict(last_result(finished, 3, latest)))
    assert search.told == [(COMPLETE, 0.5)] * 2 + [(FAIL, None)] * 2
    assert search.again().told == search.told


def test_a_search_prepares_for_every_value_that_it_may_propose() -> None:
    sweep = made(4, lr="uniform:0.1:0.9", topology=["1x1", "1x2", "2x2"], dataset=["digits", "mnist"])
    assert planner.draw(sweep) == [
        {"lr": 0.1, "topology": "1x1", "dataset": "digits"},
        {"lr": 0.1, "topology": "1x1", "dataset": "mnist"},
        {"lr": 0.9, "topology": "1x1", "dataset": "digits"},
        {"lr": 0.1, "topology": "1x2", "dataset": "digits"},
        {"lr": 0.1, "topology": "2x2", "dataset": "digits"},
    ]


def test_a_search_prepares_for_data_sets_and_values_whose_first_combination_cannot_run() -> None:
    axes = {"dataset": ["mnist", "digits"], "val_share": [0.1, 0.2], "batch_size": [2000, 16]}
    sweep = made(4, **axes, topology=["1x1", "1x2"], lr="uniform:0.1:0.9")
    ready = [trial.config for trial in planner.planned(sweep) if trial.config]
    keys = {(config.dataset, config.val_share) for config in ready}
    assert keys == {(name, share) for name in axes["dataset"] for share in axes["val_share"]}
    only = made(4, batch_size=[2000, 16], topology=["1x1", "1x2"], lr="uniform:0.1:0.9")
    ready = [trial.config for trial in planner.planned(only) if trial.config]
    assert {config.topology for config in ready} == {"1x1", "1x2"}
    assert {config.lr for config in ready} == {0.1, 0.9}


def test_a_later_driver_of_which_nothing_new_can_run_has_a_scheduler_or_says_why_not(tmp_path: Path) -> None:
    """As where a data set has shrunk, or the cluster has."""
    sweep = made(3, batch_size=[2000, 3000])
    with pytest.raises(ConfigError, match=r"^grid must have a cell that can run here; .*at least one step per epoch"):
        Driver(sweep, storage.at(str(tmp_path)), None, planner.open_trials(sweep), 0.0)  # type: ignore[arg-type]
    fitting = replace(made(3, batch_size=[16, 32]), scheduler="asha")
    first = Search(fitting, tmp_path)
    first.goes_on(lambda _: 0.5, most=1)
    later = Driver(fitting, storage.at(str(tmp_path)), None, first.again().trials, 0.0)  # type: ignore[arg-type]
    for probe in later._probes:
        probe.config = None
    assert later._asked() == []
    assert later._scheduler(GOAL) is not None


def test_what_is_proposed_after_a_resume_computes_as_before(tmp_path: Path) -> None:
    """Nothing is measured again, which would take a Ray that is not here."""
    config = made(3, lr="uniform:0.1:0.9", model=["simple_cnn"], device=["cpu"], epochs=[1000])
    first = Search(config, tmp_path)
    first.goes_on(lambda _: 0.5, most=2)
    for trial in first.trials[:2]:
        assert trial.config is not None
        assert (trial.config.precision, trial.config.convolutions) == ("auto", None)
        trial.decided = replace(trial.decided, precision="bf16", convolutions="contiguous")
    again = first.again()
    spec = again.proposer.propose()
    assert spec is not None
    new = again.trials[spec.index]
    assert new.config is not None
    Preparation(config.base, Board([], 0.0)).decide_arithmetic([new], again.trials[:2])
    assert (new.decided.precision, new.decided.convolutions) == ("bf16", "contiguous")


def test_without_optuna_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        proposals.check_installed()
    told = "--search must be grid or random without Optuna: `pip install 'cifar-ray[optuna]'` has it"
    assert caught.value.as_flag() == told
