"""A sweep from its command to what the tracking store has of it."""

from __future__ import annotations

import json
import math
import re
import signal
import time
from pathlib import Path

import pytest
from mlflow.entities import Run

from cifar_ray.reporting import data, figures
from cifar_ray.reporting import report as reports
from cifar_ray.tracking import reading
from cifar_ray.training import hardware
from tests.support.person import Person

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_sweep.yaml"
pytestmark = pytest.mark.slow
SMALL = ["--dataset", "digits", "--model", "simple_cnn", "--batch-size", "32"]


def children(person: Person, name: str) -> dict[str, Run]:
    """The runs of a sweep by their names, of which there is one each."""
    parent = person.run_named(name)
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    found = person.mlflow.search_runs([parent.info.experiment_id], wanted)
    named = {run.info.run_name: run for run in found}
    assert len(named) == len(found)
    return named


@pytest.fixture(scope="module")
def output(resident: Person) -> str:
    """What a sweep prints, with cells that learn, cells that diverge, and cells that have no room here."""
    grid = ["--seeds", "1", "--grid", "lr=0.05,1e30", "topology=1x1,1x2,1x40"]
    done = resident.runs(
        "sweep", str(EXAMPLE), "--name", "mixed", "--epochs", "2", "--batch-size", "32", "--skip-infeasible", *grid
    )
    assert done.returncode == 1, done.stderr  # some runs have failed
    return done.stdout


@pytest.fixture(scope="module")
def runs(output: str, resident: Person) -> dict[str, Run]:
    return children(resident, "mixed")


def test_each_cell_is_one_child_of_the_sweep(runs: dict[str, Run], output: str, resident: Person) -> None:
    own = resident.run_named("mixed")
    assert own.info.status == "FINISHED"
    assert own.data.tags["mlflow.note.content"].startswith("`cifar-ray report mixed")
    assert {name: run.info.status for name, run in runs.items()} == {
        "lr0.05 bs32 1x1 seed0": "FINISHED",
        "lr0.05 bs32 1x2 seed0": "FINISHED",
        "lr1e30 bs32 1x1 seed0": "FAILED",
        "lr1e30 bs32 1x2 seed0": "FAILED",
    }
    for name, run in runs.items():
        assert run.data.tags["cifar_ray.sweep"] == "mixed"
        assert run.data.params["topology"] in name
        if run.info.status == "FINISHED":
            assert resident.steps(name, "test/accuracy") == [1, 2]
        else:
            assert "not a finite number" in run.data.tags["cifar_ray.failure"]
    assert re.search(r"^runs +2 finished, 2 skipped, 2 failed$", output, flags=re.MULTILINE)
    assert "lr0.05 bs32 1x40 seed0: skipped, topology 1x40 needs 1 node with 40 CPUs each" in output
    cells = json.loads(resident.artifact("mixed", "cells.json").read_text())["cells"]
    assert [(cell["state"], cell["params"]["topology"]) for cell in cells[:3]] == [
        ("RUN", "1x1"),
        ("RUN", "1x2"),
        ("SKIPPED", "1x40"),
    ]
    (chosen,) = re.findall(r"^resnet trains in (fp32|bf16) \(16 images ", output, flags=re.MULTILINE)
    assert {run.data.params["precision"] for run in runs.values()} == {chosen}
    (accuracy,) = re.findall(r"test accuracy +([\d.]+)%", resident.succeeds("evaluate", "lr0.05 bs32 1x2 seed0").stdout)
    assert float(accuracy) == pytest.approx(100 * runs["lr0.05 bs32 1x2 seed0"].data.metrics["test/accuracy"], abs=0.01)


def test_where_the_time_went_is_recorded(runs: dict[str, Run], resident: Person) -> None:
    metrics = resident.run_named("mixed").data.metrics
    finished = [run for run in runs.values() if run.info.status == "FINISHED"]
    for phase in ("startup", "training", "evaluation", "checkpoint"):
        whole = sum(run.data.metrics[f"time/{phase}_s"] for run in finished)
        assert metrics[f"sweep/{phase}_s"] == pytest.approx(whole)
        assert whole > 0
    for run in finished:
        lasted = run.info.end_time - run.info.start_time
        assert lasted == pytest.approx(1000 * run.data.metrics["time/wall_s"], abs=2)
    epochs = sum(metrics[f"sweep/{phase}_s"] for phase in ("training", "evaluation", "checkpoint"))
    assert metrics["sweep/share_outside_training"] == pytest.approx(1 - epochs / metrics["sweep/wall_s"])


def test_a_report_has_the_figures_of_the_store(runs: object, resident: Person) -> None:
    """Every number in a table is computed again from the runs that it names."""
    built = reports.build(reading.sweeps_or_runs(resident.uri, ["mixed"])[0], None, None, None)
    sources = {
        "accuracy_percent": ("test/accuracy", 100.0),
        "f1_percent": ("test/f1", 100.0),
        "training_s": ("time/training_s", 1.0),
        "iteration_ms": ("time/iteration_mean_s", 1000.0),
        "images_per_s": ("images_per_s", 1.0),
        "peak_memory_mib": ("peak_memory_mib", 1.0),
    }
    checked = 0
    for row in data.records(built.data["figures"]):
        if row["figure"] in sources:
            metric, scale = sources[row["figure"]]
            values = [resident.mlflow.get_run(run_id).data.metrics[metric] for run_id in row["run_ids"].split()]
            assert math.isclose(row["mean"], scale * sum(values) / len(values), rel_tol=1e-9)
            checked += 1
    assert checked == 2 * len(sources)


def test_what_the_store_has_is_what_was_done(runs: object, resident: Person) -> None:
    """The recorded figures themselves, from the data set, the settings, the confusion matrix and each other."""
    finished = [trial for trial in reading.sweeps_or_runs(resident.uri, ["mixed"])[0].trials if trial.finished]
    assert len(finished) == 2
    for trial in finished:
        metrics, batch = trial.metrics, 32 * trial.world_size
        assert trial.global_batch_size == batch
        assert trial.confusion is not None
        right = sum(row[index] for index, row in enumerate(trial.confusion))
        assert sum(map(sum, trial.confusion)) == 360  # of the 1,797 digits, 1,437 are trained on
        assert metrics["test/accuracy"] == pytest.approx(right / 360)
        spent = [point.value for point in trial.history["epoch_s"]]
        assert len(spent) == int(trial.params["epochs"])
        assert metrics["time/training_s"] == pytest.approx(sum(spent))
        assert metrics["time/epoch_mean_s"] == pytest.approx(sum(spent) / len(spent))
        assert metrics["epoch_images_per_s"] * spent[-1] == pytest.approx(1437 // batch * batch)
        assert figures.trained(trial) == 1437 // batch * batch * len(spent)
        assert metrics["images_per_s"] * metrics["time/iteration_mean_s"] == pytest.approx(batch)


def test_its_name_is_taken(runs: object, resident: Person) -> None:
    sentence = resident.refused("sweep", "--name", "mixed", *SMALL, "--grid", "lr=0.1")
    assert sentence.startswith("--name must be new, and 'mixed' is in")
    assert resident.refused("sweep", "--resume", "mixed").startswith("--retry-failed must be given ")
    sentence = resident.refused("sweep", "--name", "large", *SMALL, "--grid", "topology=1x1,1x40")
    assert "bs32 1x40 seed0: topology 1x40 needs 1 node" in sentence
    assert not (resident.home / ".cifar_ray/runs/large").exists()


@pytest.mark.extended
@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.compat), 2])
def test_asha_stops_the_runs_that_fall_behind_and_the_others_have_their_cpus(person: Person, at_once: int) -> None:
    """More runs than CPUs: none finds room if those that were stopped keep theirs."""
    cpus = max(hardware.allowed_cpus() // at_once, 1)
    words = [*SMALL, "--topology", f"1x{cpus}", "--max-concurrent", str(at_once), "--epochs", "20"]
    rates = "lr=0.05,1e-9,1e-8" if at_once == 1 else "lr=0.05,0.04,1e-9,1e-8,1e-7,1e-6"
    words += ["--scheduler", "asha", "--grid", rates, "cpus_per_worker=1"]
    person.succeeds("sweep", "--name", "race", *words, CIFAR_RAY_START_TIMEOUT_S="60")
    runs = children(person, "race")
    learning = [run.info.status for name, run in runs.items() if name.startswith(("lr0.05 ", "lr0.04 "))]
    assert "FINISHED" in learning  # of two, the one that reports a rung later may be the one behind
    stopped = [run for run in runs.values() if run.info.status == "KILLED"]
    assert len(stopped) >= 2
    assert {run.info.status for run in runs.values()} == {"FINISHED", "KILLED"}
    for run in stopped:
        assert "stopped early by ASHA" in run.data.tags["cifar_ray.failure"]
        assert 0 < len(person.steps(run.info.run_name, "val/accuracy")) < 20
        assert (run.data.tags["cifar_ray.chosen_by"], run.data.params["val_share"]) == ("val", "0.1")


@pytest.mark.extended
def test_two_sweeps_with_two_runs_at_once_write_to_one_store(person: Person) -> None:
    """Four runs that begin and end together are recorded whole."""
    words = [*SMALL, "--precision", "fp32", "--epochs", "3", "--max-concurrent", "2", "--grid", "seed=1,2"]
    words += ["--cpus-per-worker", "1"]
    with person.starts("sweep", "--name", "one", *words) as one, person.starts("sweep", "--name", "two", *words) as two:
        assert (one.end(400), two.end(400)) == (0, 0), one.output + two.output
    for sweep in ("one", "two"):
        assert person.run_named(sweep).info.status == "FINISHED"
        for run in children(person, sweep).values():
            points = person.mlflow.get_metric_history(run.info.run_id, "test/accuracy")
            assert [point.step for point in points] == [1, 2, 3]
            ids = [output.model_id for output in person.mlflow.get_run(run.info.run_id).outputs.model_outputs]
            assert [str(person.mlflow.get_logged_model(model_id).status) for model_id in ids] == ["READY"]


FRAGILE = """
import pathlib
from torch import nn

class Net(nn.Module):
    def __init__(self, pixels, classes, fails_at):
        super().__init__()
        self.layer, self.fails_at, self.steps = nn.Linear(pixels, classes), fails_at, 0

    def forward(self, images):
        if self.training and len(images) > 2:
            self.steps += 1
            if self.steps == self.fails_at and pathlib.Path(__file__).with_name("broken").exists():
                raise ValueError("broken")
        return self.layer(images.flatten(1))

def build(side, channels, classes, fails_at=0):
    return Net(side**2 * channels, classes, fails_at)
"""


@pytest.mark.extended
@pytest.mark.fault
def test_failed_runs_are_tried_again_where_that_is_asked_for(person: Person) -> None:
    """One that has failed before its first checkpoint begins anew, one that has a checkpoint continues after it."""
    (person.home / "fragile.py").write_text(FRAGILE)
    (person.home / "broken").touch()
    words = [*SMALL, "--model", "fragile:build", "--precision", "fp32", "--epochs", "2", "--steps-per-epoch", "3"]
    done = person.runs("sweep", "--name", "again", *words, "--grid", "model_options.fails_at=0,1,5", "lr=0.05")
    assert done.returncode == 1, done
    fine, first, later = (f"fails-at{step} bs32 1x1 seed0" for step in (0, 1, 5))
    before = children(person, "again")
    ended = {name: run.info.status for name, run in before.items()}
    assert ended == {fine: "FINISHED", first: "FAILED", later: "FAILED"}
    (person.home / "broken").unlink()
    resumed = person.succeeds("sweep", "--resume", "again", "--retry-failed").stdout
    assert "sweep again: 2 runs of 3" in resumed
    assert f"{later}: continuing after step 3\n" in resumed
    after = children(person, "again")
    assert {name: run.info.run_id for name, run in after.items()} == {n: r.info.run_id for n, r in before.items()}
    for name, run in after.items():
        assert run.info.status == "FINISHED"
        assert "cifar_ray.failure" not in run.data.tags
        assert person.steps(name, "test/accuracy") == [1, 2]
    assert after[fine].info.end_time == before[fine].info.end_time


@pytest.mark.compat
@pytest.mark.fault
def test_a_killed_sweep_goes_on_where_it_was(person: Person) -> None:
    words = [*SMALL, "--epochs", "20", "--checkpoint-every", "10", "--grid", "topology=1x1,1x2"]
    with person.starts("sweep", "--name", "victim", *words) as driver:
        driver.until("bs32 1x1 seed0: finished")
        driver.until("bs32 1x2 seed0: epoch 3/20")
        end = time.monotonic() + 60  # the record of the first is written while the next one starts
        while children(person, "victim")["bs32 1x1 seed0"].info.status != "FINISHED":
            assert time.monotonic() < end
            time.sleep(0.1)
        driver.kill(signal.SIGKILL)
        driver.end()
    before, parent = children(person, "victim"), person.run_named("victim").info.run_id
    resumed = person.succeeds("sweep", "--resume", "victim").stdout
    assert "sweep victim: 1 run of 2, 1 at once" in resumed
    assert "bs32 1x2 seed0: continuing after step" in resumed
    after, own = children(person, "victim"), person.run_named("victim").info
    assert (own.run_id, own.status, len(after)) == (parent, "FINISHED", 2)
    assert after["bs32 1x1 seed0"].info.end_time == before["bs32 1x1 seed0"].info.end_time
    for name, run in after.items():
        assert run.info.status == "FINISHED"
        assert person.steps(name, "test/accuracy") == list(range(1, 21))
