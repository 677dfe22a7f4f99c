"""GPUs that Ray counts, and PyTorch cannot use: they are refused, and parts of them are placed."""

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
from cifar_ray.orchestration.sweep import driver as sweeps

ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
here = TrainConfig(address=ray.get_runtime_context().gcs_address)
(about_ray,) = (check for check in doctor.examine(here) if check.subject == "Ray")
print(f"doctor: {about_ray.problem}")
try:
    driver.train(TrainConfig(dataset="digits", model="simple_cnn", device="cuda", topology="1x2"))
except RunFailedError as error:
    print(f"run: {error}")
grid = SweepConfig("grid", ({"batch_size": [16, 32]},), train={"dataset": "digits", "model": "simple_cnn"})
try:
    sweeps.sweep(grid)
except ConfigError as error:
    print(f"sweep: {error}")
print(f"here: {ray.util.get_node_ip_address()} {os.uname().nodename}")
"""


SHARING = """
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ray

from cifar_ray import storage
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.orchestration.run import alone, train_worker
from cifar_ray.orchestration.run.workers import Attempt
from cifar_ray.orchestration.sweep import plan, session
from cifar_ray.orchestration.sweep.budget import Budget
from cifar_ray.orchestration.sweep.preparation import Preparation


class Meeting:
    def __init__(self):
        self.given = []

    def arrive(self, given):
        self.given.append(given)

    def met(self):
        return self.given


class Meets:
    # In place of the training, it waits until four workers are there at once.
    def train(self, attempt):
        meeting = attempt.mailbox
        ray.get(meeting.arrive.remote(train_worker.assigned_gpus()))
        end = time.monotonic() + 120
        while len(ray.get(meeting.met.remote())) < 4:
            assert time.monotonic() < end, "fewer than four at once"
            time.sleep(0.1)


ray.init("local", num_cpus=5, num_gpus=1, include_dashboard=False, log_to_driver=False)
run = {"dataset": "digits", "model": "simple_cnn", "device": "cuda", "gpus_per_worker": 0.25}
config = SweepConfig("grid", ({"batch_size": [8, 16, 32, 64, 128]},), train=run)
cells = plan.planned(config)
store = SimpleNamespace(tracking_uri="sqlite:///x")
folder, budget = storage.at(str(Path.cwd() / "grid")), Budget(config, cells)
planned = session.SweepSession(config, folder, store, cells, [], budget, 0.0)
Preparation.decide_arithmetic = lambda *_: None  # there is no such GPU
planned._fit_to_cluster(lambda can_stop=False: False)
print(f"at once: {planned._at_once}")
attempts = [Attempt(cell.config, cell.decided, [], None, None, None, None, 120.0) for cell in cells]
print("each: {CPU} CPU, {GPU} GPU".format(**attempts[0].bundle))
planned._announce()

alone.LoneWorker = Meets
meeting = ray.remote(Meeting).options(num_cpus=0).remote()
placed = [
    threading.Thread(target=alone.fit, args=[replace(attempt, mailbox=meeting)]) for attempt in attempts[:4]
]
for thread in placed:
    thread.start()
while len(ray.get(meeting.met.remote())) < 4 and any(thread.is_alive() for thread in placed):
    time.sleep(0.1)
for thread in placed:
    thread.join()
print(f"given: {ray.get(meeting.met.remote())}")
"""


@pytest.mark.slow
def test_four_runs_with_a_quarter_of_a_gpu_each_are_placed_on_it_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    done = subprocess.run([sys.executable, "-c", SHARING], capture_output=True, text=True, timeout=300, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "at once: 4\neach: 1 CPU, 0.25 GPU\n" in done.stdout
    assert "note: runs share GPUs, each with at most 25 % of one's memory; reports ignore their times" in done.stdout
    assert "given: [[0], [0], [0], [0]]" in done.stdout


@pytest.mark.extended
@pytest.mark.slow
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
    assert said["doctor"][0].startswith(f"Ray counts 2 GPUs on node {node}, but Found no NVIDIA driver")
    (failure,) = said["run"]
    assert f"the GPUs of node {name} " in failure
    assert "cannot be used: Found no NVIDIA driver" in failure
    assert said["sweep"][0].startswith(f"device must be cpu here: Ray counts 2 GPUs on node {node}, but ")
    assert "restarting" not in done.stderr
