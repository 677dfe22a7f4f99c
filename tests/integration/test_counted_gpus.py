"""GPUs that Ray counts, and PyTorch cannot use: they are refused, and parts of them are placed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.extended
SCRIPT = """
import ray
from cifar_ray.cli import doctor
from cifar_ray.config.errors import ConfigError, RunFailedError
from cifar_ray.config.sweep import SweepConfig
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.run import driver
from cifar_ray.orchestration.sweep import driver as sweeps

ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
run = {"dataset": "digits", "model": "simple_cnn"}
here = TrainConfig(address=ray.get_runtime_context().gcs_address)
(about_ray,) = (check for check in doctor.examine(here) if check.subject == "Ray")
print(f"doctor: {about_ray.problem}")
try:
    driver.train(TrainConfig(**run, device="cuda", topology="1x2"))
except RunFailedError as error:
    print(f"run: {error}")
try:
    sweeps.sweep(SweepConfig("grid", ({"batch_size": [16, 32]},), train=run))
except ConfigError as error:
    print(f"sweep: {error}")
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
Preparation.decide_arithmetic, session.preflight.gpu_problems = lambda *_: None, lambda *_: []  # there is no such GPU
planned._fit_to_cluster(lambda can_stop=False: False)
print(f"at once: {planned._at_once}")
attempts = [Attempt(cell.config, cell.decided, [], None, None, None, None, 120.0) for cell in cells]
print("each: {CPU} CPU, {GPU} GPU".format(**attempts[0].bundle))
planned._announce()

alone.LoneWorker = Meets
meeting = ray.remote(Meeting).options(num_cpus=0).remote()
placed = [threading.Thread(target=alone.fit, args=[replace(each, mailbox=meeting)]) for each in attempts[:4]]
for thread in placed:
    thread.start()
while len(ray.get(meeting.met.remote())) < 4 and any(thread.is_alive() for thread in placed):
    time.sleep(0.1)
for thread in placed:
    thread.join()
print(f"given: {ray.get(meeting.met.remote())}")
"""


def output_of(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a script prints, in a process of its own, since Ray keeps its settings."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "restarting" not in done.stderr
    return done.stdout


def test_four_runs_with_a_quarter_of_a_gpu_each_are_placed_on_it_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = output_of(SHARING, home, monkeypatch)
    assert "at once: 4\neach: 1 CPU, 0.25 GPU\n" in output
    assert "note: runs share GPUs, each with at most 25 % of one's memory; reports ignore their times" in output
    assert "given: [[0], [0], [0], [0]]" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="is for a machine without GPUs")
def test_doctor_and_runs_say_that_pytorch_cannot_use_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = output_of(SCRIPT, home, monkeypatch)
    assert re.search(r"^doctor: Ray counts 2 GPUs on node \S+, but Found no NVIDIA driver", output, re.M), output
    failures = re.findall(r"^run: .*the GPUs of node .* cannot be used: Found no NVIDIA driver", output, re.M)
    assert len(failures) == 1, output
    assert re.search(r"^sweep: device must be cpu here: Ray counts 2 GPUs on node \S+, but ", output, re.M), output
