"""One run through Ray with one worker per CPU, that of examples/digits.yaml, looked at from every side."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import Run
from PIL import Image

from cifar_ray import data
from cifar_ray.config import runfile
from cifar_ray.training import checkpoint, recipe
from tests.support.person import Person

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
OFTEN = ["--checkpoint-every", "15", "--log-every", "10"]
NARROW = ["--model-options.width", "8"]
WORDS = ["train", "--config", str(EXAMPLE), *NARROW, *OFTEN, "--run-name", "first"]
EPOCHS = list(range(1, 11))
PHASES = ("startup", "data", "training", "evaluation", "checkpoint")


@pytest.fixture(scope="module")
def lines(resident: Person) -> list[str]:
    done = resident.succeeds(*WORDS)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def run(lines: object, resident: Person) -> Run:
    return resident.run_named("first")


def value(person: Person, name: str) -> dict[str, list[dict[str, object]]]:
    return json.loads(person.artifact("first", name).read_text())


def test_plain_lines_tell_what_happens(lines: list[str]) -> None:
    assert "run first: resnet on digits, topology 1x2, 64 images per step (32 per worker), ddp" in lines
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == [f"{epoch}/10" for epoch in EPOCHS]
    for label in ("test f1 (macro)", *PHASES):
        assert any(line.startswith(label) for line in lines), label
    (accuracy,) = (line.split()[-1] for line in lines if line.startswith("test accuracy"))
    assert float(accuracy.removesuffix("%")) > 95
    assert any(line.startswith("images evaluated") and line.endswith(" 360") for line in lines)
    for chatter in ("\x1b", "INFO", "WARN", "alembic", "pid="):
        assert not any(chatter in line for line in lines)


def test_everything_is_at_one_place_and_nothing_is_left_running(lines: object, resident: Person) -> None:
    assert resident.leftovers() == []
    # Ray Train changes the workers' folder, and MLflow and Ray have defaults of their own.
    assert not list(resident.home.rglob("mlruns")) + list(resident.home.rglob("ray_results"))
    for name in ("artifacts", "mlflow.db", "runs/first/config.yaml"):
        assert (resident.home / ".cifar_ray" / name).exists()


def test_mlflow_has_parameters_tags_and_the_data_set(run: Run) -> None:
    named = {"dataset": "digits", "global_batch_size": "64", "topology": "1x2", "world_size": "2", "strategy": "ddp"}
    assert named.items() <= run.data.tags.items()
    named |= {"model": "resnet", "epochs": "10", "batch_size": "32", "seed": "0", "lr": "0.1", "optimizer": "sgd"}
    assert (named | {"device": "cpu", "model_options.width": "8"}).items() <= run.data.params.items()
    assert run.data.params["precision"] in ("fp32", "bf16")
    for name in ("version.torch", "version.ray", "version.mlflow", "cifar_ray.machine", "cifar_ray.hardware"):
        assert run.data.tags[name]
    assert "times_are_a_clusters" not in run.data.tags
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("digits", data.load("digits").spec.digest)


def test_mlflow_has_metrics_once_per_epoch_and_logged_iteration(run: Run, resident: Person) -> None:
    assert run.info.status == "FINISHED"
    for name in ("accuracy", "precision", "recall", "f1", "specificity", "loss"):
        assert resident.steps("first", f"test/{name}") == EPOCHS
    assert resident.steps("first", "test/images") == EPOCHS[-1:]
    for name in ("train/loss", "train/loss_rank0", "train/loss_rank1", "train/lr"):
        assert resident.steps("first", name) == list(range(10, 221, 10))
    metrics = run.data.metrics
    assert metrics["test/images"] == 360
    assert metrics["test/accuracy"] > 0.95
    assert not any(name.startswith(("val/", "best/", "chosen/")) for name in metrics)  # a plain run chooses nothing
    assert metrics["images_per_s"] == pytest.approx(64 / metrics["time/iteration_mean_s"])
    load = {f"system/node0/{name}" for name in ("cpu_utilization_percentage", "system_memory_usage_megabytes")}
    assert load <= {name for name in metrics if name.startswith("system/")}


def test_the_wall_time_is_that_of_mlflow_and_what_its_phases_add_up_to(run: Run, lines: list[str]) -> None:
    times = {name: run.data.metrics[f"time/{name}_s"] for name in (*PHASES, "other", "wall")}
    assert all(times[phase] > 0 for phase in PHASES)
    assert times["wall"] == pytest.approx(sum(times.values()) - times["wall"])
    assert run.info.end_time - run.info.start_time == pytest.approx(1000 * times["wall"], abs=2)
    shown = dict(line.split(maxsplit=1) for line in lines if line.startswith(("other ", "wall ")))
    assert shown == {name: f"{times[name]:.2f} s" for name in ("other", "wall")}


def test_mlflow_has_where_every_worker_stood(run: Run, resident: Person) -> None:
    first, second = resident.placement("first")
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["node_id"] == second["node_id"]
    assert first["pid"] != second["pid"]
    assert all((worker["threads"], worker["interface"]) == (1, "lo") for worker in (first, second))


def test_mlflow_has_pictures_and_tables(run: Run, resident: Person) -> None:
    with Image.open(resident.artifact("first", "confusion_matrix.png")) as picture:
        assert min(picture.size) > 400
    found = value(resident, "confusion_matrix.json")
    assert sum(map(sum, found["counts"])) == 360
    wrong = 360 - sum(row[label] for label, row in enumerate(found["counts"]))
    assert len(found["mistakes"]) == min(wrong, 16)
    table = value(resident, "per_class.json")
    assert table["columns"] == ["class", "precision", "recall", "f1", "specificity"]
    assert len(table["data"]) == 10


def test_checkpoints_are_referenced_and_the_last_ones_are_there(run: Run, resident: Person) -> None:
    entries = value(resident, "checkpoints.json")["checkpoints"]
    ends = {22 * epoch for epoch in EPOCHS}
    assert [entry["step"] for entry in entries] == sorted(ends | set(range(15, 220, 15)))
    assert all((entry["accuracy"] is not None) == (entry["step"] in ends) for entry in entries)
    kept = checkpoint.every(resident.home / ".cifar_ray/runs/first/checkpoints")
    assert kept[-2:] == [Path(str(entry["path"])) for entry in entries[-2:]]
    weights = checkpoint.read(kept[-1]).weights_sha256
    assert weights == entries[-1]["weights_sha256"] == run.data.tags["cifar_ray.weights_sha256"]


@pytest.mark.slow
def test_a_finished_run_is_not_resumed_and_its_name_is_used_once(run: Run, resident: Person) -> None:
    assert "run first is finished" in resident.succeeds("resume", "first").stdout
    assert resident.refused(*WORDS).startswith("--run-name must be new, and 'first' is in ")


def test_the_stored_config_is_that_of_the_run(run: Run, resident: Person) -> None:
    stored = resident.artifact("first", "config.yaml")
    asked = replace(runfile.load(EXAMPLE, {"model_options": {"width": 8}}), checkpoint_every=15, log_every=10)
    assert recipe.resolve(runfile.load(stored)) == recipe.resolve(asked)
    decided = runfile.decided(stored)
    assert decided is not None
    computed = (decided.device, decided.precision, decided.convolutions)
    assert computed == ("cpu", run.data.params["precision"], "channels_last")


@pytest.mark.slow
def test_torchrun_comes_to_the_same_weights(run: Run, resident: Person) -> None:
    """After every checkpoint of three epochs."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "cifar_ray.training"]
    asked = runfile.load(EXAMPLE)
    words = [f"--dataset={asked.dataset}", f"--model={asked.model}", "--epochs=10", "--batch-size=32", *NARROW, *OFTEN]
    words.append(f"--precision={run.data.params['precision']}")
    recorded = value(resident, "checkpoints.json")["checkpoints"][:7]
    assert recorded[-1]["step"] == 66
    options = {"env": resident.environment, "cwd": resident.home, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*torchrun, *words], **options) as process:  # type: ignore[call-overload]
        reached = (re.search(r"step-0*(\d+) sha256 (\w+)", line) for line in process.stdout)
        made = [(int(found[1]), found[2]) for _, found in zip(recorded, filter(None, reached))]
        process.terminate()
    assert made == [(entry["step"], entry["weights_sha256"]) for entry in recorded]
