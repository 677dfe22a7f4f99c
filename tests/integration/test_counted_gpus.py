"""GPUs that Ray counts and PyTorch cannot use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import os

import ray

from cifar_ray.cli import doctor
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.run import driver
from cifar_ray.orchestration.sweep import runner

ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
here = TrainConfig(address=ray.get_runtime_context().gcs_address)
(about_ray,) = (check for check in doctor.examine(here) if check.subject == "Ray")
print(f"doctor: {about_ray.problem}")
for topology in ("1x1", "1x2"):
    try:
        driver.train(TrainConfig(dataset="digits", model="simple_cnn", device="cuda", topology=topology))
    except RunFailedError as error:
        print(f"run: {error}")
grid = SweepConfig("grid", ({"batch_size": [16, 32]},), train={"dataset": "digits", "model": "simple_cnn"})
try:
    runner.sweep(grid)
except ConfigError as error:
    print(f"sweep: {error}")
print(f"here: {ray.util.get_node_ip_address()} {os.uname().nodename}")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="is for a machine without GPUs")
@pytest.mark.usefixtures("home")
def test_doctor_and_runs_say_that_pytorch_cannot_use_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a process of its own, since Ray keeps what it has been told."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, text = line.partition(": ")
        said.setdefault(key, []).append(text)
    node, name = said["here"][0].split()
    assert said["doctor"][0].startswith(f"Ray counts 2 GPUs on node {node}, but there is no driver here, or ")
    assert len(said["run"]) == 2
    assert all(f"the GPUs of node {name} " in text and "libcuda.so.1 in LD_" in text for text in said["run"])
    assert said["sweep"][0].startswith(f"device must be cpu here: Ray counts 2 GPUs on node {node}, but ")
    assert "restarting" not in done.stderr
