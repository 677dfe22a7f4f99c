"""The times of a run's steps in MLflow, and `cifar-ray explain`, which reads them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from cifar_ray.cli import main
from cifar_ray.data import Dataset
from cifar_ray.tracking import reading
from cifar_ray.training.rank_times import StepTimes
from tests.support.mlflow_store import only_run
from tests.support.step_times import run
from tests.unit.tracking.test_run_record import created, outcome, unguarded  # noqa: F401

SLOW = run({}, {"backward": 26.0})


def recorded(client: MlflowClient, digits: Dataset, times: StepTimes | None, status: str = "FINISHED") -> str:
    """The id of a run named ``mine`` with these times; it ended with that status."""
    record = created(client, digits)
    if status == "FINISHED":
        record.result(replace(outcome(), steps=times, confusion=[], per_class={}), digits)
    record.end(status)
    return record.run_id


def test_a_finished_run_has_the_times_of_every_rank_and_what_bounds_it(client: MlflowClient, digits: Dataset) -> None:
    recorded(client, digits, SLOW)
    data = only_run(client).data
    assert data.metrics["bound/share"] == pytest.approx(26 / 127)
    assert data.tags["cifar_ray.bound"].startswith("slow rank: rank 1 on node0 takes 118 ms")
    assert reading.step_times(client.tracking_uri, "mine") == ("mine", SLOW)


def test_explain_prints_every_rank(client: MlflowClient, digits: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = recorded(client, digits, SLOW)
    assert main.main(["explain", "mine", "--tracking-uri", client.tracking_uri]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("run mine: slow rank: rank 1 on node0 takes 118 ms for forward, backward and the optimizer")
    assert ["86.0 86.0 86.0" in line for line in rest[4:6]] == [False, True]
    assert main.main(["explain", run_id, "--json", "--tracking-uri", client.tracking_uri]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["verdict"]["kind"], found["verdict"]["ranks"]) == ("mine", "slow rank", [1])
    assert found["times"]["ranks"][1]["parts"]["backward"]["mean"] == pytest.approx(0.086)


@pytest.mark.parametrize("text", ["[]", "{", '{"ranks": [{"rank": "first"}]}', None])
def test_times_that_are_damaged_or_were_never_written_are_refused(
    text: str | None, client: MlflowClient, digits: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = recorded(client, digits, SLOW if text else None, "FINISHED" if text else "KILLED")
    if text:
        client.log_text(run_id, text, "step_times.json")
    assert main.main(["explain", "mine", "--tracking-uri", client.tracking_uri]) == 2
    assert capsys.readouterr().err.startswith("error: run 'mine' has no times of its steps by rank that can be read")
