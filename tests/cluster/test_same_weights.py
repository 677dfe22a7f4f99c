"""The same weights at any number of workers, through Ray: on two nodes, and after a driver was really killed."""

from __future__ import annotations

import time

import pytest

from cifar_ray.training import checkpoint
from tests.helpers import digest
from tests.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.data]

WORDS = "train --strategy reproducible --model resnet --resnet.blocks 1 1 --resnet.width 8 --global-batch-size 64 --precision fp32"
STEPS = "--epochs 2 --steps-per-epoch 15 --checkpoint-every 5"


def test_one_worker_two_nodes_of_two_and_a_killed_run_end_alike(person: Person) -> None:
    """30 steps of a ResNet with batch norm on real CIFAR-10: weights, statistics, optimizer state, losses."""
    words = f"{WORDS} {STEPS}".split()
    for topology, extra in (("1x1", []), ("2x2", ["--local-nodes", "2", "--oversubscribe"])):
        done = person.runs(*words, "--topology", topology, *extra, "--run-name", f"t{topology}")
        assert done.returncode == 0, done.stderr
    run = person.run_named("t2x2")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/images"] == 10_000
    assert run.inputs.dataset_inputs[0].dataset.name == "cifar10"
    with person.starts(*words, "--topology", "1x2", "--run-name", "killed") as run:
        run.until("epoch 1/2")
        time.sleep(0.3)
        run.kill()
    assert person.run_named("killed").data.tags["topology"] == "1x2"
    done = person.runs("resume", "killed", "--topology", "1x4", "--oversubscribe")
    assert done.returncode == 0, done.stderr
    assert "continuing after step" in done.stdout
    found = {}
    for name in ("t1x1", "t2x2", "killed"):
        newest = checkpoint.latest(person.home / ".cifar_ray" / "runs" / name / "checkpoints")
        assert newest is not None
        assert newest[1].step == 30
        found[name] = digest(newest[1])
    assert len(set(found.values())) == 1, found
