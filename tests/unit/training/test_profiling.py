"""Traces of some steps: which steps, what is in them, and that nothing else of a run changes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cifar_ray.config import runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset
from cifar_ray.training import checkpoint, profiling, recipe
from tests.support.helpers import Recorder, Stopped, small_config, train_here, train_on_ranks


def profiled(steps: int, **values: Any) -> TrainConfig:
    """Two epochs on digits of which so many steps are profiled."""
    return small_config(values.pop("strategy", "ddp"), values.pop("topology", "1x1"), profile_steps=steps, **values)


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    return replace(digits, test=digits.test.at(slice(40)))


def trace(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as packed:
        return json.load(packed)["traceEvents"]  # type: ignore[no-any-return]


def marked(events: list[dict[str, Any]]) -> list[str]:
    """The steps that a trace marks, in their order."""
    marks = [event for event in events if re.fullmatch(r"step \d+", event["name"])]
    return [event["name"] for event in sorted(marks, key=lambda event: event["ts"])]


@pytest.mark.parametrize(
    ("wanted", "epochs", "steps", "first"), [(9, 1, 11, 1), (10, 2, 11, 11), (5, 1, 400, 10), (2, 2, 3, 3)]
)
def test_the_profiled_steps_are_in_one_epoch(wanted: int, epochs: int, steps: int, first: int) -> None:
    config = TrainConfig(epochs=epochs, profile_steps=wanted)  # type: ignore[arg-type]
    assert recipe.profiled_from(config, steps) == first


@pytest.mark.parametrize(("wanted", "epochs"), [(0, 1), (101, 1), (11, 2), (10, 1)])
def test_no_steps_and_more_than_there_are_are_refused(wanted: int, epochs: int) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe.resolve(TrainConfig(dataset="digits", epochs=epochs, profile_steps=wanted))  # type: ignore[arg-type]
    assert caught.value.key == "profile_steps"
    assert "None" not in str(caught.value)
    params = runfile.params(profiled(2), Decided.asked(profiled(2)))
    assert not [name for name in params if "profile" in name]  # no figure depends on it


def test_a_trace_has_its_rank_its_steps_and_its_operators_and_leaves_the_weights(few: Dataset, tmp_path: Path) -> None:
    """Of the steps' times, not the first, the profiler's own warm-up, the profiled ones, and the next one."""
    outcomes, clocks = [], []
    for steps in (None, 2):
        config = small_config("reproducible", "1x1", profile_steps=steps, steps_per_epoch=6)
        outcomes.append(train_here(config, few, tmp_path / str(steps) / "at", recorder := Recorder()))
        clocks.append(checkpoint.load(checkpoint.every(tmp_path / str(steps) / "at")[-1]).clock["steps"])
    assert outcomes[0].weights_sha256 == outcomes[1].weights_sha256
    assert [len(steps) for steps in clocks] == [11, 12 - (1 + 1 + 2 + 1)]
    (told,) = recorder.traces
    assert (told.rank, told.problem, told.path) == (0, "", tmp_path / "2" / "traces" / "rank0.json.gz")
    events = trace(told.path)
    assert marked(events) == ["step 5", "step 6"]
    names = [event["name"] for event in events if event.get("cat") == "cpu_op"]
    assert {"aten::convolution", "aten::addmm"} <= {*names}
    table = list(csv.DictReader(io.StringIO(told.operators)))
    (passes,) = (row for row in table if row["operator"] == "aten::addmm")
    assert (passes["rank"], int(passes["calls"])) == ("0", names.count("aten::addmm") / 2)
    assert not [row for row in table if row["operator"].startswith(("step", "ProfilerStep"))]
    assert max(float(row["self_cpu_ms"]) for row in table) == float(table[0]["self_cpu_ms"]) > 0


def test_a_folder_that_cannot_be_written_costs_the_trace_and_not_the_run(few: Dataset, tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("no folder")
    outcome = train_here(profiled(2, steps_per_epoch=4), few, tmp_path / "at", recorder := Recorder())
    (told,) = recorder.traces
    assert (outcome.epochs, "cannot be written" in told.problem, "aten::addmm" in told.operators) == (2, True, True)


def test_a_run_that_ends_within_the_profiled_steps_ends_the_profiler(few: Dataset, tmp_path: Path) -> None:
    broken, whole, again = Recorder(stop_after=5), Recorder(), Recorder()
    short = {"steps_per_epoch": 6}
    with pytest.raises(Stopped):
        train_here(profiled(2, epochs=1, **short), few, tmp_path / "at", broken)
    assert not torch.autograd._profiler_enabled()
    assert not broken.traces
    train_here(profiled(2, epochs=1, **short), few, tmp_path / "at", whole)  # there was no checkpoint yet
    assert marked(trace(whole.traces[0].path)) == ["step 5", "step 6"]
    with pytest.raises(Stopped):
        train_here(profiled(2, **short), few, tmp_path / "second" / "at", Recorder(stop_after=8))
    train_here(profiled(2, **short), few, tmp_path / "second" / "at", again)
    assert (again.steps[0], again.traces) == (7, [])  # the run has them from before


@pytest.mark.slow
def test_every_rank_has_a_trace_with_the_same_steps(tmp_path: Path) -> None:
    config = profiled(2, strategy="gpipe", topology="1x2", epochs=1, convolutions="channels_last")
    for rank, (outcome, recorder) in enumerate(train_on_ranks(config, tmp_path / "at")):
        assert outcome is not None
        (told,) = recorder.traces
        assert (told.rank, told.problem) == (rank, "")
        events = trace(told.path)
        assert marked(events) == ["step 10", "step 11"]
        assert [event for event in events if event["name"].startswith("gloo:")]


def test_tables_of_several_ranks_have_one_header() -> None:
    assert profiling.together(["rank,operator\n0,a\n", "rank,operator\n1,a\n1,b\n"]) == "rank,operator\n0,a\n1,a\n1,b\n"
