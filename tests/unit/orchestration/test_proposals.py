"""A search whose cells Optuna proposes: what it proposes, what it is told, and what a later driver knows."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import Cell, SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.display.sweep import Board
from cifar_ray.orchestration.sweep import driver, plan, tuning
from cifar_ray.orchestration.sweep.plan import PlannedCell
from cifar_ray.orchestration.sweep.preparation import Preparation
from cifar_ray.tasks import USUAL
from cifar_ray.tasks.choosing import Goal
from tests.support.cells import Search, end

optuna = pytest.importorskip("optuna", reason="needs the extra `optuna`")
GOAL = Goal("test/accuracy", "max", USUAL)


def made(samples: int, **grid: object) -> SweepConfig:
    train = {name: value for name, value in {"dataset": "digits", "batch_size": 16}.items() if name not in grid}
    return sweeps.from_mapping({"name": "s", "search": "optuna", "samples": samples, "train": train, "grid": grid})


def test_proposals_learn_from_the_cells_before(tmp_path: Path) -> None:
    def score(cell: PlannedCell) -> float:
        assert cell.config is not None
        return -abs(math.log10(cell.config.lr) + 2)

    search = Search(made(40, lr="loguniform:0.00001:1", epochs="int:1:20"), tmp_path, GOAL)
    search.goes_on(score)
    scores = [score(cell) for cell in search.cells]
    assert sum(scores[10:]) / 30 > -1.1  # random ones have -1.3 on average: the distance to 0.01 in powers of ten
    assert all(1e-5 <= cell.config.lr <= 1 and 1 <= cell.config.epochs <= 20 for cell in search.cells if cell.config)
    assert search.told == scores


def test_every_cell_is_another_and_the_search_ends_when_all_have_been_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = Search(made(9, batch_size=[16, 32], augment=["crop", "mixup", "none"]), tmp_path, GOAL)
    search.goes_on(lambda _: 0.5)
    assert len(search.proposed) == len({str(proposal) for proposal in search.proposed}) == 6
    assert len({cell.slug for cell in search.cells}) == 9
    assert [cell.state for cell in search.cells] == [boards.FINISHED] * 6 + [boards.SKIPPED] * 3
    assert search.cells[-1].row.shown.note == "Optuna proposes nothing that has not been tried"
    assert search.is_over
    assert "sample 9: skipped, Optuna proposes nothing that has not been tried" in capsys.readouterr().out


def test_what_cannot_run_is_skipped_and_no_cell_of_later_drivers(tmp_path: Path) -> None:
    search = Search(made(12, batch_size=[16, 2000, 3000], lr="uniform:0.1:0.9"), tmp_path, GOAL)
    search.goes_on(lambda cell: None if cell.cell.values["lr"] > 0.6 else 0.25)
    states = [cell.state for cell in search.cells]
    assert set(states) == {boards.FINISHED, boards.FAILED, boards.SKIPPED}
    assert search.told == search.again().told == [0.25] * states.count(boards.FINISHED)
    hopeless = next(cell for cell in search.cells if cell.state == boards.SKIPPED)
    assert hopeless.row.shown.note.startswith("batch_size must leave at least one step per epoch")
    assert hopeless.described(search.config)["params"]["batch_size"] == str(hopeless.cell.values["batch_size"])


def test_a_later_driver_knows_how_all_came_out_trains_none_twice_and_proposes_others(tmp_path: Path) -> None:
    axes = {"lr": "loguniform:0.001:0.1", "batch_size": [16, 32], "model_options.blocks": [[1, 1], [2, 2]]}
    first = Search(made(8, **axes), tmp_path, GOAL)
    first.goes_on(lambda cell: None if cell.index == 1 else cell.index / 10, most=4)
    end(first.cells[2], boards.STOPPED)  # early, which counts with its last figure
    end(first.cells[3], boards.WAITING)  # it was killed, and is trained on under its name
    again = first.again()
    assert again.told == [0.0, 0.2]
    assert [cell.is_open for cell in again.cells] == [False] * 4 + [True] * 4
    assert again.proposed == first.proposed
    again.goes_on(lambda _: 0.75, most=1)
    assert again.cells[3].state == boards.FINISHED
    assert again.told == [0.0, 0.2, 0.75]
    again.goes_on(lambda _: 0.5)
    assert len({str(proposal) for proposal in again.proposed}) == 8
    assert len({cell.slug for cell in again.cells}) == 8


def test_a_search_prepares_for_every_value_that_it_may_propose() -> None:
    axes = {"dataset": ["mnist", "digits"], "batch_size": [2000, 16], "topology": ["1x1", "1x2", "2x2"]}
    sweep = made(4, **axes, lr="uniform:0.1:0.9")
    probes = plan.probes(sweep, plan.planned(sweep))
    for name, values in {**axes, "lr": [0.1, 0.9]}.items():
        assert {cell.cell.values[name] for cell in probes if cell.config is not None} == set(values)


def test_a_later_driver_of_which_nothing_new_can_run_has_a_scheduler_or_says_why_not() -> None:
    """As where a data set has shrunk, or the cluster has."""
    with pytest.raises(ConfigError, match=r"^grid must have a cell that can run here; .*at least one step per epoch"):
        driver.planned(made(3, batch_size=[2000, 3000]))
    sweep = replace(made(2, epochs="int:3:9"), scheduler="asha")
    _, _, probes = driver.planned(sweep)
    assert tuning.scheduler_of(sweep, GOAL, [probe.config for probe in probes if probe.config])._max_t == 9


def test_what_is_proposed_after_a_resume_computes_as_before(tmp_path: Path) -> None:
    """Nothing is measured again, which would take a Ray that is not here."""
    config = made(3, lr="uniform:0.1:0.9", model=["simple_cnn"], device=["cpu"], epochs=[1000])
    search = Search(config, tmp_path, GOAL)
    search.goes_on(lambda _: 0.5, most=2)
    for cell in search.cells[:2]:
        assert cell.config is not None
        assert (cell.config.precision, cell.config.convolutions) == ("auto", None)
        cell.decided = replace(cell.decided, precision="bf16", convolutions="contiguous")
    again = search.again()
    new = again.cells[2]
    again.ask(new)
    Preparation(config.base, Board([], 0.0)).decide_arithmetic(again.cells)
    assert (new.decided.precision, new.decided.convolutions) == ("bf16", "contiguous")


def test_without_optuna_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        plan.probes(made(1, lr="uniform:0.1:0.9"), [PlannedCell(0, Cell("one", {}))])
    told = "--search must be grid or random without Optuna: `pip install 'cifar-ray[optuna]'` has it"
    assert caught.value.as_flag() == told
