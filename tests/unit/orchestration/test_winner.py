"""Which run a search names as its best, and in which words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cifar_ray.config import sweep as sweeps
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.display import sweep as boards
from cifar_ray.orchestration.sweep.goal import goal_of
from cifar_ray.orchestration.sweep.plan import planned
from cifar_ray.orchestration.sweep.result import Winner, repeats_of, winner_of
from tests.support import cells as of_sweeps
from tests.support import typed

DONE, STOPPED, FAILED = boards.FINISHED, boards.STOPPED, boards.FAILED


def found(ends: list[tuple[str, dict[str, float]]], repeated: Sequence[float] = (), **values: object) -> Winner | None:
    """The winner among runs with learning rates of 0.1, 0.2 and so on that have ended like this.

    With ``repeated``, it is trained again, with these accuracies.
    """
    rates = [round(0.1 * number, 1) for number in range(1, len(ends) + 1)]
    train = {"dataset": "digits", "model": "simple_cnn", "epochs": 3}
    sweep: SweepConfig = sweeps.from_mapping({"name": "s", "train": train, "grid": {"lr": rates}, **values})
    cells = planned(replace(sweep, scheduler="none", objective=None, repeat=0))  # without validation images
    for cell, (state, figures) in zip(cells, ends, strict=True):
        of_sweeps.end(cell, state, figures=figures)
    goal = goal_of(sweep, [cell.config for cell in cells if cell.config])
    if goal is None:
        return None
    again = repeats_of(goal, sweep, cells)
    assert len(again) == sweep.repeat
    for cell, value in zip(again, repeated, strict=True):
        of_sweeps.end(cell, figures={goal.metric: value})
    assert repeats_of(goal, sweep, [*cells, *again]) == []
    names = {cell.cell.name for cell in (*cells, *again)}
    assert len(names) == len(cells) + len(again)
    return winner_of(goal, [*cells, *again])


def accuracies(*ends: tuple[str, float]) -> list[tuple[str, dict[str, float]]]:
    return [(state, {"test/accuracy": value, "images_per_s": 1000 * value}) for state, value in ends]


@pytest.mark.parametrize(
    ("ends", "values", "sentence"),
    [
        (
            accuracies((DONE, 0.5), (DONE, 0.8125), (DONE, 0.75)),
            {"scheduler": "asha"},
            "lr0.2 1x1 seed0: test accuracy 81.25%, 6.25 points ahead of lr0.3 1x1 seed0, the second of 3 runs that finished",
        ),
        (
            accuracies((STOPPED, 0.9), (DONE, 0.5), (FAILED, 0.95), (DONE, math.nan), (DONE, 0.25)),
            {"scheduler": "asha"},
            "lr0.2 1x1 seed0: test accuracy 50.00%, 25.00 points ahead of lr0.5 1x1 seed0, the second of 2 runs that finished",
        ),
        (
            accuracies((DONE, 0.5), (DONE, 0.8)),
            {"objective": "images_per_s:min"},
            "lr0.1 1x1 seed0: images_per_s 500.0000, 300.0000 ahead of lr0.2 1x1 seed0, the second of 2 runs that finished",
        ),
        (
            accuracies((DONE, 0.5), (DONE, 0.5)),
            {"scheduler": "asha"},
            "lr0.1 1x1 seed0: test accuracy 50.00%, as good as lr0.2 1x1 seed0, the second of 2 runs that finished",
        ),
        (
            accuracies((STOPPED, 0.9), (DONE, 0.5)),
            {"scheduler": "asha"},
            "lr0.2 1x1 seed0: test accuracy 50.00%, the only run that finished",
        ),
    ],
)  # fmt: skip
def test_the_best_of_the_whole_runs_wins(
    ends: list[tuple[str, dict[str, float]]], values: dict[str, object], sentence: str
) -> None:
    winner = found(ends, **values)
    assert winner is not None
    assert winner.sentence == sentence
    rest = typed.run(*winner.command.removeprefix("cifar-ray train ").split())
    assert (rest.lr, rest.epochs, rest.dataset) == (float(winner.name[2:5]), 6, "digits")


@pytest.mark.parametrize(("images", "chance"), [(1000, "0.14"), (10000, "8.6e-07")])
def test_the_chance_of_a_lead_is_that_of_the_report(images: int, chance: str) -> None:
    ends = [(DONE, {"test/accuracy": value, "test/images": images}) for value in (0.9, 0.92)]
    winner = found(ends, scheduler="asha")
    assert winner is not None
    assert winner.sentence.endswith(
        f"2.00 points ahead of lr0.1 1x1 seed0, the second of 2 runs that finished (by chance alone with p = {chance})"
    )


@pytest.mark.parametrize(
    ("repeated", "sentence"),
    [
        (
            [0.75, 0.875, 1.0],
            "lr0.1 1x1 seed0: test accuracy 75.00%, with 3 other seeds 87.50% (standard deviation 12.50 points), "
            "37.50 points ahead of lr0.2 1x1 seed0, the second of 2 runs that finished",
        ),
        (
            [0.25],
            "lr0.1 1x1 seed0: test accuracy 75.00%, with 1 other seed 25.00%, "
            "25.00 points behind lr0.2 1x1 seed0, the second of 2 runs that finished",
        ),
    ],
)
def test_a_run_that_is_trained_again_is_ahead_by_its_other_seeds(repeated: list[float], sentence: str) -> None:
    winner = found(accuracies((DONE, 0.75), (DONE, 0.5)), repeated, scheduler="asha", repeat=len(repeated))
    assert winner is not None
    assert (winner.sentence, winner.value) == (sentence, 0.75)


@pytest.mark.parametrize(
    ("ends", "values"),
    [
        (accuracies((DONE, 0.5), (DONE, 0.75)), {}),  # a grid is trained for a table of all its runs
        (accuracies((STOPPED, 0.5), (FAILED, 0.75)), {"scheduler": "asha"}),
        (accuracies((DONE, 0.5), (DONE, 0.75)), {"objective": "bubble/theory:min"}),
    ],
)
def test_no_run_wins_where_there_is_nothing_to_win_by(
    ends: list[tuple[str, dict[str, float]]], values: dict[str, object]
) -> None:
    assert found(ends, **values) is None
