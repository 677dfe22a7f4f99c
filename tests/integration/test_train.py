"""One run through Ray with one worker per CPU, looked at from every side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow.entities import Run
from PIL import Image

from cifar_ray import data
from cifar_ray.config import runfile
from cifar_ray.training import checkpoint, manifest
from tests.support.person import Person

LEARNED = ["--dataset", "digits", "--model", "resnet", "--epochs", "3", "--batch-size", "32", "--seed", "4"]
WORDS = [
    "train",
    *LEARNED,
    "--topology",
    "1x2",
    "--checkpoint-every",
    "15",
    "--log-every",
    "10",
    "--run-name",
    "first",
]


@pytest.fixture(scope="module")
def finished(resident: Person) -> subprocess.CompletedProcess[str]:
    done = resident.runs(*WORDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def run(finished: object, resident: Person) -> Run:
    return resident.run_named("first")


def steps(person: Person, run: Run, name: str) -> list[int]:
    return [point.step for point in person.mlflow.get_metric_history(run.info.run_id, name)]


def artifact(person: Person, run: Run, name: str) -> Path:
    return Path(person.mlflow.download_artifacts(run.info.run_id, name))


def test_plain_lines_tell_what_happens(finished: subprocess.CompletedProcess[str]) -> None:
    lines = finished.stdout.splitlines()
    assert "run first: resnet on digits, topology 1x2, 64 images per step (32 per worker), ddp" in lines
    assert [line.split()[:2] for line in lines if line.startswith("epoch ")] == [
        ["epoch", "1/3"],
        ["epoch", "2/3"],
        ["epoch", "3/3"],
    ]
    for label in ("test accuracy", "test f1 (macro)", "startup", "data", "training", "evaluation", "checkpoint"):
        assert any(line.startswith(label) for line in lines), label
    assert any(line.startswith("images evaluated") and line.endswith(" 360") for line in lines)
    assert finished.stderr == ""
    assert "\x1b" not in finished.stdout
    for chatter in ("INFO", "WARN", "alembic", "pid="):
        assert chatter not in finished.stdout


def test_nothing_is_left_running(finished: object, resident: Person) -> None:
    assert resident.leftovers() == []


def test_everything_is_at_one_place(finished: object, resident: Person) -> None:
    # Ray Train changes the workers' folder, and MLflow and Ray have defaults of their own.
    assert not list(resident.home.rglob("mlruns")) + list(resident.home.rglob("ray_results"))
    assert {path.name for path in (resident.home / ".cifar_ray").iterdir()} >= {"artifacts", "mlflow.db", "runs"}
    assert (resident.home / ".cifar_ray" / "mlflow.db").is_file()
    assert (resident.home / ".cifar_ray" / "runs" / "first" / "config.yaml").is_file()


def test_mlflow_has_the_config_as_parameters(run: Run) -> None:
    params = run.data.params
    expected = {
        "dataset": "digits",
        "model": "resnet",
        "epochs": "3",
        "batch_size": "32",
        "global_batch_size": "64",
        "topology": "1x2",
        "world_size": "2",
        "seed": "4",
        "strategy": "ddp",
        "lr": "0.1",
        "optimizer": "sgd",
        "device": "cpu",
        "resnet.width": "16",
    }
    assert expected.items() <= params.items()
    assert params["precision"] in ("fp32", "bf16")


def test_mlflow_has_metrics_once_per_epoch_and_logged_iteration(run: Run, resident: Person) -> None:
    assert run.info.status == "FINISHED"
    for name in ("accuracy", "precision", "recall", "f1", "specificity", "loss", "images"):
        assert steps(resident, run, f"test/{name}") == [1, 2, 3]
    for name in ("train/loss", "train/loss_rank0", "train/loss_rank1", "train/lr"):
        assert steps(resident, run, name) == [10, 20, 30, 40, 50, 60]
    metrics = run.data.metrics
    assert metrics["test/images"] == 360
    assert metrics["test/accuracy"] > 0.5
    assert metrics["best/accuracy"] >= metrics["test/accuracy"]
    for phase in ("startup", "data", "training", "evaluation", "checkpoint"):
        assert metrics[f"time/{phase}_s"] > 0
    assert metrics["images_per_s"] == pytest.approx(64 / metrics["time/iteration_mean_s"])


def test_the_wall_time_is_that_of_mlflow_and_what_its_phases_add_up_to(
    run: Run, finished: subprocess.CompletedProcess[str]
) -> None:
    times = run.data.metrics
    parts = ("startup", "data", "training", "evaluation", "checkpoint", "other")
    assert times["time/wall_s"] == pytest.approx(sum(times[f"time/{part}_s"] for part in parts))
    assert run.info.end_time - run.info.start_time == pytest.approx(1000 * times["time/wall_s"], abs=2)
    shown = dict(
        line.split(maxsplit=1) for line in finished.stdout.splitlines() if line.startswith(("other ", "wall "))
    )
    assert shown == {name: f"{times[f'time/{name}_s']:.2f} s" for name in ("other", "wall")}


def test_mlflow_has_the_load_of_the_node(run: Run) -> None:
    names = {name.split("/")[-1] for name in run.data.metrics if name.startswith("system/")}
    assert {"cpu_utilization_percentage", "system_memory_usage_megabytes"} <= names


def test_mlflow_has_tags_for_everything_that_a_figure_depends_on(run: Run) -> None:
    tags = run.data.tags
    expected = {"topology": "1x2", "world_size": "2", "global_batch_size": "64", "strategy": "ddp", "dataset": "digits"}
    assert expected.items() <= tags.items()
    for name in ("version.torch", "version.ray", "version.mlflow", "cifar_ray.machine", "cifar_ray.hardware"):
        assert tags[name]
    assert "times_are_a_clusters" not in tags


def test_mlflow_has_the_data_set(run: Run) -> None:
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("digits", data.load("digits").digest)


def test_mlflow_has_where_every_worker_stood(run: Run, resident: Person) -> None:
    workers = json.loads(artifact(resident, run, "placement.json").read_text())
    assert [worker["rank"] for worker in workers] == [0, 1]
    assert len({worker["node_id"] for worker in workers}) == 1
    assert len({worker["pid"] for worker in workers}) == 2
    assert {worker["threads"] for worker in workers} == {1}
    assert {worker["interface"] for worker in workers} == {"lo"}


def test_mlflow_has_pictures_and_tables(run: Run, resident: Person) -> None:
    with Image.open(artifact(resident, run, "confusion_matrix.png")) as picture:
        assert min(picture.size) > 400
    counts = json.loads(artifact(resident, run, "confusion_matrix.json").read_text())["counts"]
    assert sum(map(sum, counts)) == 360
    table = json.loads(artifact(resident, run, "per_class.json").read_text())
    assert table["columns"] == ["class", "precision", "recall", "f1", "specificity"]
    assert len(table["data"]) == 10


def test_checkpoints_are_referenced_and_the_last_ones_are_there(run: Run, resident: Person) -> None:
    entries = json.loads(artifact(resident, run, "checkpoints.json").read_text())["checkpoints"]
    assert [entry["step"] for entry in entries] == [15, 22, 30, 44, 45, 60, 66]
    assert [entry["accuracy"] is not None for entry in entries] == [False, True, False, True, False, False, True]
    kept = checkpoint.every(resident.home / ".cifar_ray" / "runs" / "first" / "checkpoints")
    assert kept[-2:] == [Path(entry["path"]) for entry in entries[-2:]]
    newest = manifest.read(kept[-1])
    assert newest.weights.sha256 == entries[-1]["weights_sha256"]
    assert run.data.tags["cifar_ray.weights_sha256"] == entries[-1]["weights_sha256"]


def test_the_model_is_loaded_from_mlflow_and_reaches_the_recorded_accuracy(run: Run, resident: Person) -> None:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(resident.uri)
    try:
        model = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/first")
    finally:
        mlflow.set_tracking_uri(before)
    digits = data.load("digits")
    probabilities = model.predict(digits.test.images)
    assert probabilities.sum(1) == pytest.approx(np.ones(360), abs=1e-4)
    accuracy = (probabilities.argmax(1) == digits.test.labels).mean()
    assert accuracy == pytest.approx(run.data.metrics["test/accuracy"], abs=1 / 360)  # float32 here, maybe bf16 there
    assert model.metadata.signature.inputs.to_dict()[0]["tensor-spec"]["dtype"] == "uint8"


def test_evaluating_again_gives_the_recorded_figures(run: Run, resident: Person) -> None:
    for by in ("first", run.info.run_id):
        done = resident.runs("evaluate", by)
        assert done.returncode == 0, done.stderr
        assert f"test accuracy             {run.data.metrics['test/accuracy']:.2%}" in done.stdout
        assert "images evaluated          360" in done.stdout


def test_predicting_names_the_classes_of_images(run: Run, resident: Person, tmp_path: Path) -> None:
    digits = data.load("digits")
    right = 0
    files = []
    for index in range(20):
        files.append(tmp_path / f"{index}.png")
        Image.fromarray(digits.test.images[index]).resize((200, 200), Image.Resampling.NEAREST).save(files[-1])
    done = resident.runs("predict", "first", *map(str, files), "--top", "1")
    assert done.returncode == 0, done.stderr
    for line, file, label in zip(done.stdout.splitlines(), files, digits.test.labels, strict=False):
        assert line.startswith(f"{file}: ")
        assert line.endswith("%")
        right += line.split(": ")[1].split()[0] == str(label)
    assert right >= 10


def test_a_finished_run_is_not_resumed(run: Run, resident: Person) -> None:
    done = resident.runs("resume", "first")
    assert (done.returncode, done.stdout) == (0, "run first is finished; there is nothing to resume\n")


def test_a_name_is_used_once(run: Run, resident: Person) -> None:
    done = resident.runs(*WORDS)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --run-name must be new, and 'first' is in ")
    assert "`cifar-ray resume first` continues it" in done.stderr


def test_the_stored_config_starts_the_same_run_again(run: Run, resident: Person) -> None:
    """And the loop under torchrun comes to the same weights as under Ray."""
    stored = artifact(resident, run, "config.yaml")
    config = runfile.load(stored)
    assert (config.precision, config.device) == (run.data.params["precision"], "cpu")
    done = resident.runs("train", "--config", str(stored), "--run-name", "second", "--verbose")
    assert done.returncode == 0, done.stderr
    assert "PlacementGroupCleaner" not in done.stdout + done.stderr  # it has nothing to see there
    again = resident.run_named("second")
    assert again.data.tags["cifar_ray.weights_sha256"] == run.data.tags["cifar_ray.weights_sha256"]
    same = [name for name in run.data.metrics if name.startswith(("test/", "train/"))]
    assert {name: again.data.metrics[name] for name in same} == {name: run.data.metrics[name] for name in same}


def test_torchrun_comes_to_the_same_weights(run: Run, resident: Person) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "cifar_ray.training"]
    words = [*LEARNED, "--run-name", "third"]
    done = subprocess.run(
        [*torchrun, *words], capture_output=True, text=True, timeout=200, env=resident.environment, cwd=resident.home
    )
    assert done.returncode == 0, done.stderr
    assert f"sha256 {run.data.tags['cifar_ray.weights_sha256']}" in done.stdout


WITHOUT = """
import sys
for name in ("ray", "mlflow", "rich", "yaml", "sklearn", "psutil", "pandas", "pyarrow"):
    sys.modules[name] = None  # an import of it fails
import runpy
sys.argv = ["cifar_ray.training", "--model", "vit", "--epochs", "nonsense"]
runpy.run_module("cifar_ray.training", run_name="__main__")
"""


def test_training_needs_torch_torchvision_torchmetrics_and_safetensors_alone() -> None:
    """Its whole import, up to where it reads its flags, with everything else out of reach."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "error: --epochs must be a whole number, got 'nonsense'\n")
