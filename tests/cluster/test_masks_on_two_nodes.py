"""Segmentation on two nodes with a killed worker, and under torchrun: the same weights."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from examples.segmentation import make_masks
from tests.support.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.extended]

WORDS = ["--dataset", "masks:digits", "--model", "unet", "--unet.width", "4", "--epochs", "30"]
WORDS += ["--global-batch-size", "16", "--strategy", "reproducible", "--augment", "crop", "--val-share", "0.2"]
WORDS += ["--precision", "fp32", "--cpus-per-worker", "1", "--class-weights", "balanced", "--stream"]


def test_weights_are_those_of_one_node_though_a_worker_of_two_is_killed(person: Person) -> None:
    make_masks.make(person.home / "digits", 100)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "cifar_ray.training"]
    alone = subprocess.run(
        [*torchrun, *WORDS, "--device", "cpu", "--storage", "alone"],
        env={**person.environment, "OMP_NUM_THREADS": "1"},
        cwd=person.home,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert alone.returncode == 0, alone.stderr
    *_, last = re.findall(r"step-0*(\d+) sha256 (\w+)", alone.stdout)

    nodes = ["--topology", "2x2", "--local-nodes", "2", "--oversubscribe", "--device", "cpu", "--log-models", "none"]
    with person.starts("train", *WORDS, *nodes, "--run-name", "two") as run:
        run.until("epoch 1/30")
        os.kill(
            next(pid for pid, words in person.processes().items() if words.startswith("ray::RayTrainWorker")),
            signal.SIGKILL,
        )
        assert run.end() == 0, run.output
    two = person.run_named("two")
    assert len({worker["node_id"] for worker in person.placement("two")}) == 2
    assert two.data.tags["cifar_ray.worker_failures"] == "1"
    recorded = json.loads(person.artifact("two", "checkpoints.json").read_text())["checkpoints"]
    assert recorded[-1]["step"] == int(last[0])
    assert two.data.tags["cifar_ray.weights_sha256"] == last[1]
