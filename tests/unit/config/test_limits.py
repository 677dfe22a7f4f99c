"""Limits in time and money, as they are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from cifar_ray.cli.train import new_limits, resume, sweep
from cifar_ray.config import command_line, flags, limits, runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.sweep import SweepConfig, cells
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import recipe

GRID: dict[str, Any] = {"grid": {"seed": [1, 2]}}


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1H30M", 5400), ("1.5h", 5400), ("1h2m3s", 3723)])
def test_a_duration_is_hours_minutes_and_seconds(text: str, seconds: float) -> None:
    assert limits.seconds(text) == seconds
    assert TrainConfig(max_time=text).max_time == text


@pytest.mark.parametrize("value", ["0s", "-1h", "1h30", "2", "", "1d", 7200, True])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    sentence = "^max_time must be a duration of more than zero, such as 90s, 10m, 2h or 1h30m, got "
    with pytest.raises(ConfigError, match=sentence):
        TrainConfig(max_time=value)
    with pytest.raises(ConfigError, match=sentence):
        SweepConfig("s", max_time=value, **GRID)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_limit_on_the_cost_is_more_than_nothing_and_needs_a_price(value: float) -> None:
    def refused(told: str, cost: float, **price: float) -> None:
        with pytest.raises(ConfigError, match=told):
            TrainConfig(max_cost=cost, **price)
        with pytest.raises(ConfigError, match=told):
            SweepConfig("s", max_cost=cost, train=price, **GRID)

    refused("^max_cost must be more than 0", value, price=2.49)
    refused("^max_cost needs --price", 5.0)
    assert SweepConfig("s", max_cost=5.0, train={"price": 2.49}, **GRID).base.price == 2.49


def test_limits_of_a_command_and_at_the_top_of_a_file_are_the_sweeps_and_below_train_each_runs() -> None:
    file = {**GRID, "max_cost": 5, "train": {"max_time": "10m", "price": 2.49}}
    asked = sweeps.from_mapping(command_line.merged(file, {"max_time": "2h"}, "s.yaml"))
    assert (asked.max_time, asked.max_cost) == ("2h", 5.0)
    for cell in cells(asked, asked.combinations):
        assert cell.config is not None
        assert (cell.config.max_time, cell.config.max_cost, cell.config.price) == ("10m", None, 2.49)
    again = sweeps.from_mapping(command_line.merged({}, {"grid": ["seed=1,2"], "price": "2.49", "max_cost": "5"}, "s"))
    assert (again.max_cost, again.base.price) == (5.0, 2.49)


@pytest.mark.parametrize("name", limits.KEYS)
def test_a_limit_is_no_axis(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^grid must not have {name}, which is "):
        sweeps.from_mapping({"name": "s", "grid": {name: ["1h" if name == "max_time" else "1"]}})


def test_limits_are_no_parameters_of_a_run_but_its_patience_is() -> None:
    asked = TrainConfig(max_time="4h", max_cost=9.0, price=2.49, patience=3, val_share=0.1)
    recorded = runfile.params(recipe.resolve(asked), Decided.asked(recipe.resolve(asked)))
    assert {name: value for name, value in recorded.items() if name in limits.KEYS} == {"patience": "3"}
    assert "patience" not in runfile.params(recipe.resolve(TrainConfig()), Decided.asked(recipe.resolve(TrainConfig())))


def test_a_run_and_a_sweep_go_on_with_larger_limits() -> None:
    words = ["--max-time", "4h", "--max-cost", "9"]
    new = {"max_time": "4h", "max_cost": 9.0}
    given = flags.read(resume, ["mine", *words, "--price", "2.49"], "resume")
    assert given == {"run": "mine", "options": {"price": "2.49", "max_time": "4h", "max_cost": "9"}}
    assert new_limits(None, flags.read(sweep, words, "sweep")["options"]) == new
    with pytest.raises(ConfigError, match=r"^max_time must be a duration"):
        new_limits(None, {"max_time": "0s"})
