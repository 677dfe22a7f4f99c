"""What a population may differ in."""

from __future__ import annotations

from typing import Any

import pytest

from cifar_ray.config import sweepfile
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.option import may_change
from cifar_ray.config.population import explored
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig

RATES = {"lr": [0.1, 0.2]}
RANGE = {"lr": {"uniform": [0.1, 0.2]}}


def population(grid: Any, **values: Any) -> SweepConfig:
    train = {"dataset": "digits", "model": "simple_cnn", "epochs": 3, **values.pop("train", {})}
    return sweepfile.from_mapping({"name": "s", "scheduler": "pbt", "grid": grid, "train": train, **values})


def test_options_that_may_change_within_a_run() -> None:
    assert may_change(TrainConfig) == ["lr", "momentum", "weight_decay", "clip_norm", "ema", "label_smoothing"]


def test_axes_of_several_values_are_explored() -> None:
    sweep = population({**RATES, "seed": [0, 1], "momentum": [0.9]})
    assert explored(sweep.grid[0]) == {"lr": [0.1, 0.2]}
    assert (sweep.pbt.every, sweep.pbt.quantile) == (1, 0.25)
    ranged = population(RANGE, search="random", samples=4)
    assert list(explored(ranged.grid[0])) == ["lr"]


@pytest.mark.parametrize(
    ("grid", "values", "sentence"),
    [
        (
            {**RATES, "topology": ["1x1", "1x2"]},
            {},
            "grid must have one value of topology for --scheduler pbt, which changes values within a run: lr, momentum, "
            "weight_decay, clip_norm, ema or label_smoothing may differ, and the seed",
        ),
        (
            {"seed": [0, 1]},
            {},
            "grid must have several values or a range of lr, momentum, weight_decay, clip_norm, ema or label_smoothing "
            "for --scheduler pbt",
        ),
        ([RATES, RATES], {}, "grid must be one grid for --scheduler pbt"),
        (
            {"clip_norm": [None, 1.0]},
            {},
            "grid must list numbers for clip_norm with --scheduler pbt, got None",
        ),
        (
            RANGE,
            {"search": "optuna", "samples": 4},
            "search must be grid or random for --scheduler pbt: a population begins as a whole, got optuna",
        ),
        (RANGE, {"search": "random", "samples": 1}, "samples must be 2 or more for --scheduler pbt"),
        (
            RATES,
            {"repeat": 2},
            "repeat must be left out with --scheduler pbt: values that changed on the way are no run's own",
        ),
        (
            RATES,
            {"train": {"patience": 2}},
            "patience must be left out with --scheduler pbt, where no run ends before the others",
        ),
        (RATES, {"pbt": {"quantile": 0.6}}, "pbt.quantile must be at most 0.5, got 0.6"),
        (RATES, {"pbt": {"every": 0}}, "pbt.every must be at least 1, got 0"),
        (RATES, {"scheduler": "asha", "pbt": {"every": 2}}, "pbt.every is for --scheduler pbt only"),
    ],
)
def test_what_cannot_take_over_is_refused_in_a_sentence(grid: Any, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        population(grid, **values)
    assert str(refused.value).startswith(sentence)
