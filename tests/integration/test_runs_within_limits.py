"""Runs and sweeps that stop at a limit in time or money, and go on with a larger one."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.person import Person

LONG = ["train", "--dataset", "digits", "--model", "simple_cnn", "--epochs", "50", "--precision", "fp32"]
LONG += ["--batch-size", "16", "--log-every", "50"]
SHORT = ["--dataset", "digits", "--model", "simple_cnn", "--precision", "fp32", "--batch-size", "32"]


pytestmark = pytest.mark.extended


def test_a_run_stops_at_its_limit_and_comes_to_the_same_weights_with_a_larger_one(person: Person) -> None:
    words = [*LONG, "--topology", "1x2", "--cpus-per-worker", "1"]
    done = person.succeeds(*words, "--run-name", "mine", "--max-time", "5s", "--price", "3600")
    assert "`cifar-ray resume mine --max-time MORE` goes on" in done.stdout
    run = person.run_named("mine")
    assert (run.info.status, run.data.tags["cifar_ray.stopped_by"]) == ("FINISHED", "max_time")
    assert 5 <= run.data.metrics["time/placed_s"] < 60
    assert run.data.metrics["cost/usd"] == pytest.approx(run.data.metrics["time/placed_s"])
    assert run.data.metrics["time/waiting_s"] > 0
    assert run.outputs is None or not run.outputs.model_outputs
    assert person.refused("resume", "mine").startswith("--max-time must be more than ")
    listed = json.loads(person.artifact("mine", "checkpoints.json").read_text())["checkpoints"]
    on = person.succeeds("resume", "mine", "--max-time", "10m")
    assert f"continuing after step {listed[-1]['step']}" in on.stdout
    resumed = person.run_named("mine")
    assert (resumed.info.status, "cifar_ray.stopped_by" in resumed.data.tags) == ("FINISHED", False)
    assert resumed.data.metrics["cost/usd"] > run.data.metrics["cost/usd"]

    person.succeeds(*words, "--run-name", "whole")
    whole = person.run_named("whole").data.tags["cifar_ray.weights_sha256"]
    assert resumed.data.tags["cifar_ray.weights_sha256"] == whole
    assert person.leftovers() == []


def test_a_sweep_starts_no_run_that_it_cannot_expect_to_finish_and_trains_it_with_a_larger_limit(
    person: Person,
) -> None:
    """100,000 epochs are expected to take 100,000 times what one has taken; its patience ends the run long before."""
    words = ["sweep", *SHORT, "--name", "grid", "--grid", "epochs=1,100000", "--max-concurrent", "1", "--price", "3600"]
    done = person.succeeds(*words, "--lr", "1e-9", "--patience", "1", "--max-time", "30m")
    reason = r"expected to take \d+ h \d\d min, and .* of the sweep's --max-time 30m are left"
    assert re.search(rf"^epochs100000 bs32 1x1 seed0: skipped, {reason}$", done.stdout, flags=re.MULTILINE), done.stdout
    assert re.search(r"^runs +1 finished, 1 skipped$", done.stdout, flags=re.MULTILINE)
    own = person.run_named("grid")
    assert own.info.status == "FINISHED"
    assert own.data.metrics["cost/usd"] == person.run_named("epochs1 bs32 1x1 seed0").data.metrics["cost/usd"]
    _, cell = json.loads(person.artifact("grid", "cells.json").read_text())["cells"]
    assert (cell["state"], re.fullmatch(reason, cell["reason"]) is not None) == ("SKIPPED", True)
    on = person.succeeds("sweep", "--resume", "grid", "--max-time", "100000h")
    assert re.search(r"^runs +2 finished$", on.stdout, flags=re.MULTILINE)
    costs = [person.run_named(f"epochs{count} bs32 1x1 seed0").data.metrics["cost/usd"] for count in (1, 100000)]
    assert person.run_named("grid").data.metrics["cost/usd"] == pytest.approx(sum(costs))


def test_a_run_ends_by_its_patience_and_goes_on_with_more(person: Person) -> None:
    words = ["train", *SHORT, "--epochs", "40", "--lr", "0.3", "--run-name", "mine"]
    done = person.succeeds(*words, "--patience", "1")
    told = r"^stopped by --patience 1 after epoch (\d+) of 40, val/accuracy was best after epoch (\d+); "
    found = re.search(told, done.stdout, re.MULTILINE)  # on a busy machine, another line says what bounds the run
    assert found is not None, done.stdout
    assert int(found[1]) == int(found[2]) + 1
    run = person.run_named("mine")
    assert (run.info.status, run.data.tags["cifar_ray.stopped_by"]) == ("FINISHED", "patience")
    assert {"test/accuracy", "chosen/test/accuracy"} <= run.data.metrics.keys()
    assert len(run.outputs.model_outputs) == 1
    assert person.refused("resume", "mine").startswith("--patience must be more than ")
    on = person.succeeds("resume", "mine", "--patience", "2")
    assert f"epoch {int(found[1]) + 1}/40" in on.stdout
    assert len(person.run_named("mine").outputs.model_outputs) == 2
    assert person.leftovers() == []
