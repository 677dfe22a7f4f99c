"""A population: bad runs take over from good ones, and a kill loses nothing of it."""

from __future__ import annotations

import json
import random
import time

import pytest

from cifar_ray.training import hardware
from tests.integration.test_sweep import children
from tests.support.person import Person

# Few steps, and no arithmetic that is measured: the same population gives the same bits each time.
SMALL = ["--dataset", "digits", "--model", "simple_cnn", "--global-batch-size", "32", "--precision", "fp32"]
WORDS = [*SMALL, "--epochs", "3", "--warmup-epochs", "0", "--scheduler", "pbt", "--cpus-per-worker", "1"]
RATES = ["--grid", "lr=0.05,1e-9,0.04,0.03"]


def rounds(person: Person, name: str) -> list[dict[str, object]]:
    return json.loads((person.home / ".cifar_ray/runs" / name / "population.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(hardware.allowed_cpus() < 2, reason="needs two CPUs to run two runs at once")
def test_a_run_that_learns_nothing_takes_over_from_one_that_does_and_goes_on(person: Person) -> None:
    output = person.succeeds("sweep", "--name", "people", *WORDS, "--max-concurrent", "2", *RATES, timeout=600).stdout
    assert "note: 10% of the training images are kept for validation" in output
    runs = children(person, "people")
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    bad = next(name for name in runs if name.startswith("lr1e-09 "))
    first, *_ = lineage = json.loads(runs[bad].data.tags["cifar_ray.lineage"])
    assert (first["epoch"], first["step"], first["before"]) == (1, 40, {"lr": 1e-9})
    assert f"{bad}: after epoch 1, goes on from {first['source']} with lr " in output
    assert [takeover[bad] for one in rounds(person, "people") if bad in (takeover := one["takeovers"])] == lineage  # type: ignore[operator, index]

    client, run_id = person.mlflow, runs[bad].info.run_id
    rates = {point.step: point.value for point in client.get_metric_history(run_id, "population/lr")}
    assert rates == {0: 1e-9, **{takeover["epoch"]: takeover["after"]["lr"] for takeover in lineage}}
    assert runs[bad].data.params["lr"] == "1e-09"
    accuracy = {point.step: point.value for point in client.get_metric_history(run_id, "val/accuracy")}
    assert sorted(accuracy) == [1, 2, 3]
    assert accuracy[1] < 0.3 < 0.6 < accuracy[3]

    person.succeeds("report", "people", "--out", "report")
    page = (person.home / "report/report.md").read_text()
    assert f"| {bad} | 1 | 40 | {first['source']} | lr 1e-09 | lr {first['after']['lr']:.4g} |" in page


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("seed", [0, 1])
def test_a_population_that_is_killed_goes_on_to_the_same_bits(person: Person, seed: int) -> None:
    """Killed at any moment, it comes to the weights and the lineage of one that was not, and trains nothing twice."""
    words, moments = ["sweep", "--name", "victim", *WORDS, *RATES], random.Random(seed)
    for _ in range(2):
        with person.starts(*words) as driver:
            driver.until(" of 4, ")
            end = time.monotonic() + moments.uniform(0, 25)
            while time.monotonic() < end and driver.process.poll() is None:
                time.sleep(0.05)
            driver.kill()
            driver.end()
        words = ["sweep", "--resume", "victim"]
    decided = rounds(person, "victim") if (person.home / ".cifar_ray/runs/victim/population.json").exists() else []
    ended = {name: r.info.end_time for name, r in children(person, "victim").items() if r.info.status == "FINISHED"}
    person.succeeds(*words, timeout=600)
    killed = children(person, "victim")
    assert {run.info.status for run in killed.values()} == {"FINISHED"}
    assert {name: killed[name].info.end_time for name in ended} == ended
    for one, same in zip(decided, rounds(person, "victim"), strict=False):
        assert one["takeovers"] == same["takeovers"]
    for name in killed:
        assert person.steps(name, "val/accuracy") == [1, 2, 3]
    weights = {name: run.data.tags["cifar_ray.weights_sha256"] for name, run in killed.items()}
    lineages = {name: run.data.tags.get("cifar_ray.lineage") for name, run in killed.items()}

    person.succeeds("delete", "victim", "--yes")
    person.succeeds("sweep", "--name", "victim", *WORDS, *RATES, timeout=600)  # chance is drawn from the name
    whole = children(person, "victim")
    assert {name: run.data.tags["cifar_ray.weights_sha256"] for name, run in whole.items()} == weights
    assert {name: run.data.tags.get("cifar_ray.lineage") for name, run in whole.items()} == lineages
