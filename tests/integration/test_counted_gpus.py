"""GPUs that Ray counts and PyTorch cannot use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch

from cifar_ray.cli import doctor
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.run import driver
from cifar_ray.orchestration.sweep import runner

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="is for a machine without GPUs")


@pytest.fixture
def counting(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray that has been told of two GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("counting")
def test_doctor_and_runs_say_that_pytorch_cannot_use_them(capsys: pytest.CaptureFixture[str]) -> None:
    here = TrainConfig(address=ray.get_runtime_context().gcs_address)
    (about_ray,) = (check for check in doctor.examine(here) if check.subject == "Ray")
    node = ray.util.get_node_ip_address()
    assert about_ray.problem.startswith(f"Ray counts 2 GPUs on node {node}, but there is no driver here, or ")
    for topology in ("1x1", "1x2"):
        run = TrainConfig(dataset="digits", model="simple_cnn", device="cuda", topology=topology, run_name="gpus")
        with pytest.raises(RunFailedError, match=rf"the GPUs of node {os.uname().nodename} .* libcuda.so.1 in LD_"):
            driver.train(run)
    grid = SweepConfig("grid", ({"batch_size": [16, 32]},), train={"dataset": "digits", "model": "simple_cnn"})
    with pytest.raises(ConfigError, match=rf"device must be cpu here: Ray counts 2 GPUs on node {node}, but "):
        runner.sweep(grid)
    assert "restarting" not in capsys.readouterr().err
