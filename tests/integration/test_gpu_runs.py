"""Whole runs on a GPU, through Ray and MLflow: what test_gpu.py does without them holds.

pytest -m gpu tests/integration/test_gpu_runs.py
CIFAR_RAY_GPU_DRY_RUN=1 pytest -m gpu tests/integration/test_gpu_runs.py    # on a CPU: everything but CUDA itself
"""

from __future__ import annotations

import json
import os

import mlflow.pyfunc
import numpy as np
import pytest
import torch

from cifar_ray import data
from tests.support.helpers import png
from tests.support.person import Person

HERE = torch.cuda.is_available()
DEVICE = "cuda" if HERE else "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not HERE and "CIFAR_RAY_GPU_DRY_RUN" not in os.environ,
        reason="needs a GPU; with CIFAR_RAY_GPU_DRY_RUN=1, everything but CUDA itself runs on a CPU",
    ),
]
SMALL = ("--dataset", "digits", "--model", "simple_cnn", "--epochs", "3", "--global-batch-size", "32")


def test_a_run_takes_the_gpu_and_its_model_loads(resident: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    resident.succeeds("train", *SMALL, "--run-name", "first")
    run = resident.run_named("first")
    assert run.data.params["device"] == DEVICE
    assert run.data.metrics["test/accuracy"] > 0.5
    utilisation = [name for name in run.data.metrics if name.startswith("system/") and "gpu" in name]
    assert bool(utilisation) == HERE, list(run.data.metrics)
    (logged,) = resident.mlflow.search_logged_models([run.info.experiment_id])
    test = data.load("digits").test
    monkeypatch.setenv("MLFLOW_TRACKING_URI", resident.uri)
    model = mlflow.pyfunc.load_model(f"models:/{logged.model_id}")
    answers = model.predict({"image": [png(pixels[::4, ::4, 0]) for pixels in test.inputs]})
    right = (np.asarray(answers["label"].astype(int)) == test["labels"]).mean()
    assert right == pytest.approx(run.data.metrics["test/accuracy"], abs=0.01)


def test_evaluate_has_the_figures_of_the_run(resident: Person) -> None:
    scored = json.loads(resident.succeeds("evaluate", "first", "--json").stdout)
    recorded = resident.run_named("first").data.metrics["test/accuracy"]
    assert scored["metrics"]["accuracy"] == pytest.approx(recorded, abs=0.01)


def test_a_run_on_the_cpu_leaves_the_gpu_alone(resident: Person) -> None:
    resident.succeeds("train", *SMALL, "--device", "cpu", "--run-name", "on-cpu")
    run = resident.run_named("on-cpu")
    assert run.data.params["device"] == "cpu"
    assert not [name for name in run.data.metrics if "gpu" in name]


@pytest.mark.parametrize("strategy", ["all_reduce", "fsdp", "local_sgd", "reproducible", "parameter_server"])
def test_a_strategy(strategy: str, resident: Person) -> None:
    words = ("--device", DEVICE, "--topology", "1x1", "--strategy", strategy)
    resident.succeeds("train", *SMALL, *words, "--run-name", strategy)
    assert resident.run_named(strategy).data.metrics["test/accuracy"] > 0.5


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs a machine with one GPU")
def test_more_gpus_than_there_are(resident: Person) -> None:
    assert "GPU" in resident.refused("train", *SMALL, "--device", "cuda", "--topology", "1x2")


@pytest.mark.skipif(not HERE, reason="needs a GPU's memory")
def test_out_of_memory_is_said_once(resident: Person) -> None:
    taken = torch.cuda.mem_get_info()[0] - 600 * 2**20  # a worker and its CUDA need that much before they train
    held = torch.empty(taken, dtype=torch.uint8, device="cuda")
    words = ("--model", "resnet50", "--global-batch-size", "1024", "--precision", "fp32", "--device", "cuda")
    done = resident.runs("train", "--dataset", "digits", *words, "--epochs", "1", "--run-name", "large")
    del held
    torch.cuda.empty_cache()
    assert done.returncode == 1, done
    assert (done.stderr.count("error: "), "memory" in done.stderr) == (1, True), done.stderr
    assert resident.run_named("large").info.status == "FAILED"


def test_a_sweep_on_one_gpu(resident: Person) -> None:
    (resident.home / "sweep.yaml").write_text(
        "version: 2\ngrid: {batch_size: [32, 64], topology: [1x1]}\n"
        f"train: {{dataset: digits, model: simple_cnn, epochs: 1, device: {DEVICE}}}\n"
    )
    resident.succeeds("sweep", "sweep.yaml", "--name", "pair")
    resident.succeeds("report", "pair", "--out", "report")
    page = (resident.home / "report" / "report.html").read_text()
    assert not HERE or torch.cuda.get_device_name() in page


def test_runs_of_a_sweep_share_the_gpu_and_one_without_memory_fails_alone(resident: Person) -> None:
    too_large = "  - {model: [resnet50], batch_size: [1024], precision: [fp32]}\n" * HERE
    (resident.home / "shared.yaml").write_text(
        f"version: 2\ngrid:\n  - {{model: [simple_cnn], batch_size: [32, 64]}}\n{too_large}"
        "train: {dataset: digits, epochs: 1, gpus_per_worker: 0.1}\n"
    )
    done = resident.runs("sweep", "shared.yaml", "--name", "shared")
    assert done.returncode == int(HERE), done.stderr
    for told in ("note: runs share GPUs, each with at most 10 %", "a larger --gpus-per-worker gives more"):
        assert (told in done.stdout) == HERE
    resident.succeeds("report", "shared", "--out", "shared")
    page = (resident.home / "shared" / "report.md").read_text()
    assert ("All finished runs shared GPUs" in page) == HERE


def test_doctor_names_the_gpu(resident: Person) -> None:
    gpus = next(line for line in resident.runs("doctor").stdout.splitlines() if "GPUs" in line)
    assert (torch.cuda.get_device_name() if HERE else "none") in gpus
