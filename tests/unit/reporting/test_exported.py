"""A study as a file, and several as one report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import aggregate, exported, markdown, report
from cifar_ray.tracking.study import Study
from tests.support.studies import grid, study, trial


def round_trip(of: Study, folder: Path) -> Study:
    made = folder / "study.json"
    made.write_text(exported.text(of))
    return exported.read(made)


def plain(of: Study) -> str:
    """Its report, but for the moment and the place that it comes from."""
    return markdown.text(replace(report.build(replace(of, store="", page=None)), written=""))


def test_a_file_makes_the_report_that_the_store_makes(tmp_path: Path) -> None:
    of = grid()
    assert plain(round_trip(of, tmp_path)) == plain(of)
    assert round_trip(of, tmp_path).store == "study.json"


def test_what_is_no_number_stays_that(tmp_path: Path) -> None:
    lost = trial(accuracies=(0.1, math.nan))
    lost = replace(lost, metrics={**lost.metrics, "test/loss": math.inf})
    (back,) = round_trip(study(lost), tmp_path).trials
    assert math.isnan(back.history["test/accuracy"][1].value)
    assert back.metrics["test/loss"] == math.inf
    json.loads((tmp_path / "study.json").read_text(), parse_constant=pytest.fail)


def test_a_file_names_nobody(tmp_path: Path) -> None:
    tags = {"mlflow.user": "ada", "mlflow.source.git.commit": "abc"}
    (back,) = round_trip(study(replace(trial(tags=tags), page="http://here/")), tmp_path).trials
    assert back.page is None
    assert "mlflow.user" not in back.tags
    assert back.tags["mlflow.source.git.commit"] == "abc"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"cifar_ray_study": 2}', '{"cifar_ray_study": 1, "trials": [3]}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    made = tmp_path / "other.json"
    made.write_text(content)
    with pytest.raises(ConfigError, match=r"other\.json is no study that `cifar-ray export` has written"):
        exported.read(made)
    with pytest.raises(ConfigError, match=r"cannot read nosuch\.json: No such file or directory"):
        exported.read(Path("nosuch.json"))


@pytest.mark.parametrize("batch", ["", "x", None])
def test_a_run_without_what_tables_need_is_refused(batch: str | None, tmp_path: Path) -> None:
    whole = json.loads(exported.text(grid()))
    whole["trials"][1]["params"]["batch_size"] = batch
    (tmp_path / "study.json").write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match=r"study\.json is no study that `cifar-ray export` has written"):
        exported.read(tmp_path / "study.json")


def test_seeds_of_two_files_are_one_configuration_and_machines_are_not() -> None:
    first, second = study(trial(seed=0)), study(trial(seed=1))
    (one,) = aggregate.configurations(exported.together([first, second]))
    assert [run.seed for run in one.trials] == [0, 1]
    elsewhere = study(trial(seed=1, tags={"cifar_ray.hardware": "NVIDIA H200"}))
    apart = aggregate.configurations(exported.together([first, elsewhere]))
    assert [len(one.trials) for one in apart] == [1, 1]
    assert exported.together([first]) is first


def test_studies_that_hold_different_batches_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"must hold the same batch size as workers change, got .*global_batch"):
        exported.together([study(trial(), name="a"), study(trial(), name="b", hold="global_batch")])
