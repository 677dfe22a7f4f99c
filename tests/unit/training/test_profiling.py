"""Traces of some steps: which steps, what is in them, and that nothing else of a run changes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
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

EPOCH_STEPS = 11  # of digits, with 128 images in a step


def profiled(steps: int, **values: Any) -> TrainConfig:
    """Two epochs on digits of which so many steps are profiled."""
    return small_config(values.pop("strategy", "ddp"), values.pop("topology", "1x1"), profile_steps=steps, **values)


def trace(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as packed:
        return json.load(packed)["traceEvents"]  # type: ignore[no-any-return]


def marked(events: list[dict[str, Any]]) -> list[str]:
    """The steps that a trace marks, in their order."""
    marks = [event for event in events if re.fullmatch(r"step \d+", event["name"])]
    return [event["name"] for event in sorted(marks, key=lambda event: event["ts"])]


@pytest.mark.parametrize(
    ("wanted", "epochs", "steps", "first"),
    [(3, 1, 11, 7), (9, 1, 11, 1), (10, 2, 11, 11), (5, 1, 400, 10), (1, 1, 3, 1), (2, 2, 3, 3)],
)
def test_the_profiled_steps_are_in_one_epoch_after_the_first_step(
    wanted: int, epochs: int, steps: int, first: int
) -> None:
    config = TrainConfig(epochs=epochs, profile_steps=wanted)  # type: ignore[arg-type]
    assert recipe.profiled_from(config, steps) == first
    assert first > 0
    assert (first + wanted) // steps == first // steps


@pytest.mark.parametrize(
    ("wanted", "epochs", "sentence"),
    [
        (0, 1, "must be at least 1, got 0"),
        (101, 1, "must be at most 100, got 101"),
        (12, 2, "must be at most 10 here: an epoch has 11 steps, and those before the profiled ones warm up, got 12"),
        (10, 1, "must be at most 9 here: an epoch has 11 steps, and those before the profiled ones warm up, got 10"),
    ],
)
def test_no_steps_and_more_than_there_are_are_refused(wanted: int, epochs: int, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe.resolve(TrainConfig(dataset="digits", epochs=epochs, profile_steps=wanted))  # type: ignore[arg-type]
    assert str(caught.value) == f"profile_steps {sentence}"


def test_profiled_steps_are_no_parameter() -> None:
    assert not [
        name for name in runfile.params(profiled(2), Decided.asked(profiled(2))) if "profile" in name
    ]  # no figure depends on it


def test_a_trace_has_its_rank_its_steps_and_its_operators_and_leaves_the_weights(
    digits: Dataset, tmp_path: Path
) -> None:
    plain = train_here(small_config("reproducible", "1x1", epochs=1), digits, tmp_path / "a" / "at")
    recorder = Recorder()
    config = profiled(3, strategy="reproducible", epochs=1)
    outcome = train_here(config, digits, tmp_path / "b" / "at", recorder)
    assert outcome.weights_sha256 == plain.weights_sha256
    (told,) = recorder.traces
    assert (told.rank, told.problem, told.path) == (0, "", tmp_path / "b" / "traces" / "rank0.json.gz")
    events = trace(told.path)
    assert marked(events) == ["step 9", "step 10", "step 11"]
    names = {event["name"] for event in events if event.get("cat") == "cpu_op"}
    assert {"aten::convolution", "aten::addmm"} <= names
    table = list(csv.DictReader(io.StringIO(told.operators)))
    (passes,) = (row for row in table if row["operator"] == "aten::addmm")
    assert (passes["rank"], int(passes["calls"]) > 0) == ("0", True)
    assert not [row for row in table if row["operator"].startswith(("step", "ProfilerStep"))]
    assert max(float(row["self_cpu_ms"]) for row in table) == float(table[0]["self_cpu_ms"]) > 0


def test_times_have_no_profiled_step_nor_those_beside_them(digits: Dataset, tmp_path: Path) -> None:
    """Of 22 steps: not the first of the process, the profiler's own warm-up, the profiled ones, and the next one."""
    for steps, left_out in ((None, 1), (3, 1 + 1 + 3 + 1)):
        folder = tmp_path / str(steps) / "at"
        train_here(small_config("ddp", "1x1", profile_steps=steps), digits, folder)
        clock = checkpoint.load(checkpoint.every(folder)[-1]).clock
        assert len(clock["steps"]) == 2 * EPOCH_STEPS - left_out


def test_a_folder_that_cannot_be_written_costs_the_trace_and_not_the_run(digits: Dataset, tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("no folder")
    recorder = Recorder()
    outcome = train_here(profiled(2), digits, tmp_path / "at", recorder)
    assert outcome.epochs == 2
    (told,) = recorder.traces
    assert told.problem == f"{tmp_path}/traces/rank0.json.gz cannot be written: File exists"
    assert "aten::addmm" in told.operators


def test_a_run_that_ends_within_the_profiled_steps_ends_the_profiler_and_has_its_trace_when_it_goes_on(
    digits: Dataset, tmp_path: Path
) -> None:
    broken, whole, again = Recorder(stop_after=10), Recorder(), Recorder()
    with pytest.raises(Stopped):
        train_here(profiled(3), digits, tmp_path / "at", broken)
    assert not torch.autograd._profiler_enabled()
    assert not broken.traces
    train_here(profiled(3, epochs=1), digits, tmp_path / "at", whole)  # there was no checkpoint yet
    assert marked(trace(whole.traces[0].path)) == ["step 9", "step 10", "step 11"]
    with pytest.raises(Stopped):
        train_here(profiled(3, epochs=3), digits, tmp_path / "third" / "at", Recorder(stop_after=15))
    train_here(profiled(3, epochs=3), digits, tmp_path / "third" / "at", again)
    assert not again.traces  # the run has them from before


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "gpipe",
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("one_f_one_b", "model_parallel", "hogwild")),
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("fsdp", "all_reduce", "local_sgd")),
    ],
)
def test_every_rank_has_a_trace_with_the_same_steps(strategy: str, tmp_path: Path) -> None:
    config = profiled(2, strategy=strategy, topology="1x2", epochs=1, convolutions="channels_last")
    for rank, (outcome, recorder) in enumerate(train_on_ranks(config, tmp_path / "at")):
        assert outcome is not None
        (told,) = recorder.traces
        assert (told.rank, told.problem) == (rank, "")
        events = trace(told.path)
        assert marked(events) == ["step 10", "step 11"]
        if strategy in ("gpipe", "all_reduce", "fsdp"):
            assert [event for event in events if event["name"].startswith("gloo:")]


def test_tables_of_several_ranks_have_one_header() -> None:
    assert profiling.together(["rank,operator\n0,a\n", "rank,operator\n1,a\n1,b\n"]) == "rank,operator\n0,a\n1,a\n1,b\n"
