"""The times of a run's steps in MLflow, and `cifar-ray explain`, which reads them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from cifar_ray.cli import main
from cifar_ray.config.errors import ConfigError
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


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_a_finished_run_has_the_times_of_every_rank_and_what_bounds_it(client: MlflowClient, digits: Dataset) -> None:
    recorded(client, digits, SLOW)
    data = only_run(client).data
    assert data.metrics["bound/share"] == pytest.approx(26 / 127)
    assert data.tags["cifar_ray.bound"].startswith("slow rank: rank 1 on node0 takes 118 ms")
    assert reading.step_times(client.tracking_uri, "mine") == ("mine", SLOW)


def test_what_is_not_known_costs_no_share(client: MlflowClient, digits: Dataset) -> None:
    recorded(client, digits, run({}, {}, stretches=3))
    data = only_run(client).data
    assert "bound/share" not in data.metrics
    assert data.tags["cifar_ray.bound"].startswith("not enough evidence: ")


def test_explain_prints_the_verdict_and_every_rank(
    client: MlflowClient, digits: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(client, digits, SLOW)
    assert main.main(["explain", "mine", "--tracking-uri", client.tracking_uri]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("run mine: slow rank: rank 1 on node0 takes 118 ms for forward, backward and the optimizer")
    assert [line[:7] for line in rest[:2]] == ["  try: "] * 2
    header, *ranks = [line.split("  ") for line in rest[3:6]]
    assert [cell.strip() for cell in header if cell] == [
        *("rank", "node", "steps", "iteration", "data", "forward", "backward", "communication", "optimizer"),
    ]  # fmt: skip
    assert ["86.0 86.0 86.0" in [cell.strip() for cell in cells] for cells in ranks] == [False, True]
    assert "86.0 86.0 86.0" in rest[5]


def test_explain_as_json(client: MlflowClient, digits: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = recorded(client, digits, SLOW)
    assert main.main(["explain", run_id, "--json", "--tracking-uri", client.tracking_uri]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["verdict"]["kind"], found["verdict"]["ranks"]) == ("mine", "slow rank", [1])
    assert found["times"]["ranks"][1]["parts"]["backward"]["mean"] == pytest.approx(0.086)


def test_a_run_without_times_says_why(
    client: MlflowClient, digits: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(client, digits, None, "KILLED")
    said = complaint(["explain", "mine", "--tracking-uri", client.tracking_uri], capsys)
    assert (
        said
        == "error: run 'mine' has no times of its steps by rank that can be read: they are written when it finishes\n"
    )


@pytest.mark.parametrize("text", ["[]", "{", '{"ranks": [{"rank": "first"}]}'])
def test_damaged_times_are_refused(text: str, client: MlflowClient, digits: Dataset) -> None:
    run_id = recorded(client, digits, SLOW)
    client.log_text(run_id, text, "step_times.json")
    with pytest.raises(ConfigError, match="run 'mine' has no times of its steps by rank that can be read"):
        reading.step_times(client.tracking_uri, "mine")
