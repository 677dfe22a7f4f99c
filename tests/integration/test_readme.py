"""What the README promises, by whole runs as a person types them: six starts of Ray."""

from __future__ import annotations

import csv
import json
import re
import signal
from pathlib import Path

import pytest
import requests

from tests.support.images import folder_of_digits
from tests.support.person import Person
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
TOPOLOGIES = ("1x1", "1x2", "2x2")
TRAINING = ["--dataset", "digits", "--model", "simple_cnn", "--epochs", "8", "--precision", "fp32"]
TRAINING += ["--strategy", "reproducible", "--global-batch-size", "64", "--lr", "0.05", "--checkpoint-every", "10"]


def weights(person: Person, run: str) -> str:
    return person.run_named(run).data.tags["cifar_ray.weights_sha256"]


@pytest.fixture(scope="module")
def grid(resident: Person) -> list[str]:
    """The names of the runs of a sweep over topologies."""
    cells = ["--seeds", "1", "--grid", f"topology={','.join(TOPOLOGIES)}"]
    output = resident.succeeds("sweep", "--name", "grid", *TRAINING, "--local-nodes", "2", *cells).stdout
    assert re.search(r"^runs +3 finished$", output, flags=re.M), output
    assert re.search(r"^of all runs +startup \d+ s, .*training \d+ s, evaluation \d+ s", output, flags=re.M), output
    sweep = resident.run_named("grid")
    found = resident.mlflow.search_runs(
        [sweep.info.experiment_id], f"tags.`mlflow.parentRunId` = '{sweep.info.run_id}'"
    )
    by_topology = {run.data.params["topology"]: run.info.run_name for run in found}
    return [by_topology[topology] for topology in TOPOLOGIES]


def test_the_weights_are_the_same_to_the_bit_on_one_worker_two_and_two_nodes(grid: list[str], resident: Person) -> None:
    assert len({weights(resident, name) for name in grid}) == 1
    for name, world_size in zip(grid, (1, 2, 4), strict=True):
        metrics, places = resident.run_named(name).data.metrics, resident.placement(name)
        assert (metrics["test/images"], len(places)) == (360, world_size)
    assert len({place["node_id"] for place in resident.placement(grid[2])}) == 2
    assert resident.leftovers() == []


def test_a_run_that_is_killed_goes_on_and_has_the_weights_of_the_sweeps(grid: list[str], resident: Person) -> None:
    with resident.starts("train", *TRAINING, "--topology", "1x2", "--run-name", "killed") as run:
        run.until("epoch 1/8")
        run.kill(signal.SIGKILL)
        assert run.end() == -signal.SIGKILL
    first = resident.run_named("killed").info.run_id
    assert re.search(r"after step [1-9]", resident.succeeds("resume", "killed").stdout)
    again = resident.run_named("killed")
    assert (again.info.run_id, again.info.status) == (first, "FINISHED")
    assert resident.steps("killed", "test/accuracy") == list(range(1, 9))
    assert weights(resident, "killed") == weights(resident, grid[0])


def test_a_report_has_every_figure_with_its_run(grid: list[str], resident: Person) -> None:
    resident.succeeds("report", "grid", "--out", "report", "--price", "0.18")
    folder = resident.home / "report"
    assert {"report.html", "report.md", "runs.csv", "figures.csv"} <= {path.name for path in folder.iterdir()}
    rows = list(csv.DictReader((folder / "runs.csv").open()))
    assert [row["run_id"] for row in rows] == [resident.run_named(name).info.run_id for name in grid]
    page = (folder / "report.html").read_text()
    assert all(topology in page for topology in TOPOLOGIES)
    assert all(float(row["cost_usd"]) > 0 for row in rows), rows[0].keys()


def test_runs_are_compared_and_explained(grid: list[str], resident: Person) -> None:
    compared = resident.succeeds("compare", *grid[:2]).stdout
    assert re.search(r"^topology +1x1 +1x2$", compared, flags=re.M), compared
    explained = json.loads(resident.succeeds("explain", grid[1], "--json").stdout)
    assert explained["run"] == grid[1]
    assert explained["verdict"]
    listed = json.loads(resident.succeeds("runs", "--json").stdout)
    assert "grid" in json.dumps(listed)


def test_a_plan_measures_and_reckons(resident: Person) -> None:
    words = ["--dataset", "digits", "--model", "simple_cnn", "--global-batch-size", "64", "--epochs", "2"]
    done = resident.succeeds("plan", *words, "--nodes", "1,2", "--link", "10gbit", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [row["topology"] for row in rows] == ["1x1", "2x1"]
    assert all(0 < row["step_s"]["low"] <= row["step_s"]["mid"] <= row["step_s"]["high"] for row in rows)


def test_ones_own_network_and_images_are_trained_fine_tuned_and_served(resident: Person) -> None:
    folder_of_digits(resident.home / "images", 300)
    (resident.home / "nets.py").write_text((ROOT / "examples" / "own_model.py").read_text())
    words = ["--dataset", "folder:images", "--model", "nets:build", "--model-options.width", "8", "--epochs", "4"]
    words += ["--optimizer", "torch.optim:RMSprop", "--lr", "0.002", "--weight-decay", "0", "--batch-size", "32"]
    resident.succeeds("train", *words, "--topology", "1x2", "--run-name", "own", "--ema", "0.9")
    started = [
        "--weights",
        "own",
        "--val-share",
        "0.2",
        "--freeze",
        "0",
        "--unfreeze-epoch",
        "2",
        "--run-name",
        "tuned",
    ]
    told = resident.succeeds("train", *words, *started, "--log-models", "all").stdout
    tuned = resident.run_named("tuned").data
    assert "of the parameters" in told
    assert tuned.metrics["test/accuracy"] > 0.5
    assert tuned.metrics["best/accuracy"] >= tuned.metrics["val/accuracy"]

    images = sorted((resident.home / "images/test").rglob("*.png"))[:8]
    answers = json.loads(resident.succeeds("predict", "tuned", *map(str, images), "--json").stdout)
    with resident.starts("serve", "tuned", "--port", str(port := free_port())) as server:
        server.until("ready at")
        served = requests.post(f"http://127.0.0.1:{port}/predict", data=images[0].read_bytes(), timeout=60).json()
    best = served["classes"][0]
    assert [best["class"], pytest.approx(best["probability"], abs=1e-4)] == answers[0]["classes"][0]
